// What an auditor writes in an afternoon: read an export line by line, recalculate each record of dice from the seed that stands
// beside it, and compare.
import { createHash, createHmac } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';

let verified = 0;
let wrong = 0;
const started = process.hrtime.bigint();
for await (const line of createInterface({ input: createReadStream(process.argv[2]) })) {
  const { record, serverSeed } = JSON.parse(line);
  if (record === undefined) continue;
  const commitment = createHash('sha256').update(serverSeed).digest('hex');
  const digest = createHmac('sha256', serverSeed).update(`${record.clientSeed}:${record.nonce}:0`).digest();
  const float = digest[0] / 256 + digest[1] / 65536 + digest[2] / 16777216 + digest[3] / 4294967296;
  const result = Math.floor(float * 10001) / 100;
  if (commitment === record.commitment && record.cursor === 0 && result === record.result) verified += 1;
  else wrong += 1;
}
console.log(JSON.stringify({ verified, wrong, seconds: Number(process.hrtime.bigint() - started) / 1e9 }));
