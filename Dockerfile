# The service as an image: a small system, one binary, no root.
#
#   docker build --build-arg COMMIT="$(git rev-parse HEAD)" -t fairledger .

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
# Such as otlp.
ARG FEATURES=
# Dependencies first, over an empty program: this layer is built again only when they change.
COPY Cargo.toml Cargo.lock build.rs ./
RUN mkdir src migrations \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked --lib --bins --features "$FEATURES" \
    && rm -r src
COPY sqlx-data.json ./
COPY migrations migrations
COPY src src
ARG COMMIT=
# The time of the copied files may lie before that of the empty program.
RUN touch src/main.rs src/lib.rs build.rs && FAIRLEDGER_COMMIT=$COMMIT cargo build --release --locked --lib --bins --features "$FEATURES"

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin fairledger \
    && install --directory --owner=fairledger --mode=0700 /var/lib/fairledger
COPY --from=build /build/target/release/fairledger /usr/local/bin/fairledger
USER fairledger
# A private database would go with the container.
ENV FAIRLEDGER_REQUIRE_DATABASE=1 \
    FAIRLEDGER_LISTEN=0.0.0.0:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=6s --start-period=30s CMD ["fairledger", "health"]
ENTRYPOINT ["fairledger"]
CMD ["serve"]
