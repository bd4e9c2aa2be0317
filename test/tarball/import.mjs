// Consumer of the installed package: ESM names resolve and the addon answers.
import assert from 'node:assert/strict';
import { cpu, DsError, initialize, nn, Tensor, version } from '@ds/native';

assert.equal(typeof initialize, 'function');
assert.equal(typeof nn.models.GPT2, 'function');
assert.match(version, /^\d+\.\d+\.\d+/);
const x = Tensor.from([1, 2, 3], { device: cpu() });
assert.deepEqual([...(await x.read())], [1, 2, 3]);
x.dispose();
await assert.rejects(async () => x.read(), DsError);
