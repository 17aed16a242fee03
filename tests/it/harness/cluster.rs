//! The PostgreSQL of a run, and the template in it.

use std::str::FromStr as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairledger::db::bootstrap::{self, OWNER, READ, SERVICE};
use fairledger::db::{migrate, rights::Roles};
use fairledger::embedded::{Embedded, find_binaries};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection};
use testcontainers::core::{IntoContainerPort as _, WaitFor};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::OnceCell;

use super::at_exit::run_at_exit;

/// Of our roles, on servers that ask for one.
const PASSWORD: &str = "fairledger-tests";
const PREFIX: &str = "fltest";
/// Databases of other runs on a shared server are taken for left over after this.
const LEFTOVER_AGE: Duration = Duration::from_secs(6 * 3600);
/// Tests need no durability against power cuts; that processes are killed loses nothing.
const SETTINGS: [(&str, &str); 3] = [("fsync", "off"), ("full_page_writes", "off"), ("max_connections", "300")];

/// The PostgreSQL of this run of the test binary.
#[derive(Debug)]
pub struct Cluster {
    admin: PgConnectOptions,
    /// What the names of this run's databases begin with.
    pub prefix: String,
    /// The migrated database that tests get clones of.
    pub template: String,
    _server: Server,
}

/// Kept for as long as the process lives.
#[derive(Debug)]
enum Server {
    External,
    Container(Box<ContainerAsync<GenericImage>>),
    Private(Embedded),
}

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

impl Cluster {
    pub async fn get() -> &'static Self {
        CLUSTER.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let (server, admin_url) = start_server().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let prefix = format!("{PREFIX}_{}_{}", now.as_secs(), std::process::id());
        let admin = PgConnectOptions::from_str(&admin_url).unwrap();
        let template = format!("{prefix}_template");
        let cluster = Self { admin, prefix, template, _server: server };
        let mut connection = cluster.connect().await;
        bootstrap::roles(&mut connection).await.unwrap();
        if !matches!(cluster._server, Server::Private(_)) {
            for role in [OWNER, SERVICE, READ] {
                run(&mut connection, format!("ALTER ROLE {role} PASSWORD '{PASSWORD}'")).await.unwrap();
            }
            drop_leftovers(&mut connection, now.saturating_sub(LEFTOVER_AGE).as_secs()).await;
        }
        cluster.create_database(&cluster.template, None).await;
        migrate::run(&cluster.url(OWNER, &cluster.template), &Roles::default()).await.unwrap();
        // Nobody shall connect to it any more: a database in use cannot be cloned.
        run(&mut connection, format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", cluster.template)).await.unwrap();
        cluster
    }

    async fn connect(&self) -> PgConnection {
        self.admin.connect().await.expect("the cluster's administrator")
    }

    /// The administrator in a test's database.
    pub async fn connect_to(&self, database: &str) -> PgConnection {
        self.admin.clone().database(database).connect().await.expect("the cluster's administrator")
    }

    /// Makes an empty database or a clone. A clone has not the rights on the database itself, so these are stated again.
    pub async fn create_database(&self, name: &str, template: Option<&str>) {
        let mut connection = self.connect().await;
        let template = template.map_or_else(String::new, |template| format!("TEMPLATE {template}"));
        run(&mut connection, format!("CREATE DATABASE {name} OWNER {OWNER} {template}")).await.unwrap();
        if !template.is_empty() {
            run(&mut connection, format!("REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")).await.unwrap();
        }
        connection.close().await.unwrap();
    }

    /// A URL for one of our roles.
    pub fn url(&self, role: &str, database: &str) -> String {
        let credentials =
            if matches!(self._server, Server::Private(_)) { role.to_owned() } else { format!("{role}:{PASSWORD}") };
        let (port, mode) = (self.admin.get_port(), ssl_mode(self.admin.get_ssl_mode()));
        match self.admin.get_socket() {
            Some(socket) => {
                let socket = socket.to_str().expect("an ASCII path").replace('/', "%2F");
                format!("postgres://{credentials}@{socket}:{port}/{database}?sslmode={mode}")
            }
            None => format!("postgres://{credentials}@{}:{port}/{database}?sslmode={mode}", self.admin.get_host()),
        }
    }
}

fn ssl_mode(mode: PgSslMode) -> &'static str {
    match mode {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow | PgSslMode::Prefer => "prefer",
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => "require",
    }
}

async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    // Its parts are names that were made here.
    connection.execute(AssertSqlSafe(statement)).await.map(drop)
}

async fn start_server() -> (Server, String) {
    if let Some(url) = std::env::var("TEST_DATABASE_URL").ok().filter(|url| !url.is_empty()) {
        return (Server::External, url);
    }
    if docker_answers().await {
        match start_container().await {
            Ok(started) => return started,
            Err(error) => eprintln!("no container ({error}); taking local binaries"),
        }
    }
    start_private().await
}

async fn start_private() -> (Server, String) {
    let binaries = find_binaries(None).unwrap_or_else(|error| panic!("{error}, or TEST_DATABASE_URL"));
    let mut folder = tempfile::Builder::new().prefix("fltest").tempdir().unwrap();
    folder.disable_cleanup(true);
    let server = Embedded::start(folder.path(), &binaries, &SETTINGS).await.unwrap();
    // The server hears of our end from the kernel; its folder goes when it has.
    let (pid, path) = (server.pid().to_string(), folder.path().to_str().unwrap());
    run_at_exit("while kill -0 \"$1\"; do sleep 0.1; done; rm -rf \"$2\"", &[&pid, path]);
    let url = server.url(bootstrap::SUPERUSER, "postgres");
    (Server::Private(server), url)
}

async fn start_container() -> Result<(Server, String), Box<dyn std::error::Error>> {
    let settings = SETTINGS.map(|(name, value)| format!("{name}={value}"));
    let image = GenericImage::new("postgres", "17-alpine")
        .with_exposed_port(5432.tcp())
        // The first is said on stdout by the entry point once the cluster is prepared, by a server that listens on no port; the second on
        // stderr by the server that then starts.
        .with_wait_for(WaitFor::message_on_stdout("PostgreSQL init process complete; ready for start up."))
        .with_wait_for(WaitFor::message_on_stderr("listening on IPv4 address"))
        .with_env_var("POSTGRES_PASSWORD", PASSWORD)
        .with_cmd(settings.iter().flat_map(|setting| ["-c", setting.as_str()]));
    let container = tokio::time::timeout(Duration::from_secs(180), image.start()).await??;
    run_at_exit("docker rm --force --volumes \"$1\"", &[container.id()]);
    let (host, port) = (container.get_host().await?, container.get_host_port_ipv4(5432.tcp()).await?);
    let url = format!("postgres://postgres:{PASSWORD}@{host}:{port}/postgres?sslmode=disable");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while let Err(error) = PgConnection::connect(&url).await {
        if tokio::time::Instant::now() > deadline {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok((Server::Container(Box::new(container)), url))
}

/// Whether a Docker engine answers within a second. Asked first, since without one testcontainers takes its time to say so.
async fn docker_answers() -> bool {
    async fn ping(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) -> bool {
        let mut answer = Vec::new();
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n").await.is_ok()
            && stream.read_to_end(&mut answer).await.is_ok()
            && answer.split(|&byte| byte == b' ').nth(1) == Some(b"200")
    }
    let host = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".into());
    let asked = async {
        if let Some(path) = host.strip_prefix("unix://") {
            ping(tokio::net::UnixStream::connect(path).await?).await
        } else {
            let address = host.strip_prefix("tcp://").unwrap_or(&host);
            ping(tokio::net::TcpStream::connect(address).await?).await
        }
        .then_some(())
        .ok_or_else(|| std::io::Error::other("no Docker"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), asked).await, Ok(Ok(())))
}

/// Databases of runs that began before `before`, in Unix seconds, on a server that outlives its runs.
async fn drop_leftovers(connection: &mut PgConnection, before: u64) {
    let names: Vec<String> =
        sqlx::query_scalar("SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1)")
            .bind(format!("{PREFIX}_"))
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    for name in names {
        let began = name.split('_').nth(1).and_then(|seconds| seconds.parse::<u64>().ok());
        if began.is_some_and(|began| began < before) {
            // Another run may be at the same.
            let _ = run(connection, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        }
    }
}

/// Drops a database, from a thread of its own since a test's runtime may be ending. Best effort: a private server takes everything
/// with it, and on any other the next run clears up.
pub fn drop_database(name: &str) {
    let Some(cluster) = CLUSTER.get() else { return };
    let work = async {
        let mut connection = cluster.admin.connect().await?;
        run(&mut connection, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        connection.close().await
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            if let Err(error) = runtime.block_on(work) {
                eprintln!("database {name} was not dropped: {error}");
            }
        });
    });
}
