// Prints the hash of each result as JSON, to compare two processors:
//   compare-bits.cjs       print {"name": "hash"}
//   compare-bits.cjs A B   print a table of two such files; fail if bits differ that must be equal
const { createHash } = require('node:crypto');
const { readFileSync } = require('node:fs');

/**
 * Results of the C library's functions, or of OpenBLAS: its kernels for AVX2, AVX-512 and Arm add
 * in different orders.
 */
const MAY_DIFFER = /^(expm1|tan$|log1p|f32 product|b?f16 product of [389])/;

/** Numbers that every processor computes without rounding differences. */
function numbers(count, seed, scale = 8) {
  let state = seed;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.fround((state / 2 ** 32 - 0.5) * scale);
  });
}

function results() {
  const { Tensor, noGrad, scope } = require('../../dist');
  const out = {};
  const keep = (name, make) => {
    scope(() => {
      const bytes = Buffer.from(Float32Array.from(noGrad(make).to('f32').toArray()).buffer);
      out[name] = createHash('sha256').update(bytes).digest('hex').slice(0, 12);
    });
  };
  const tensor = (shape, seed, dtype = 'f32', scale = 8) => {
    const count = shape.reduce((a, b) => a * b, 1);
    return Tensor.from(numbers(count, seed, scale), { shape }).to(dtype);
  };
  for (const name of [
    ...['exp', 'expm1', 'sin', 'cos', 'tan', 'tanh', 'sigmoid', 'silu', 'relu', 'erf', 'gelu'],
    ...['square', 'reciprocal', 'floor', 'round'],
  ]) {
    keep(name, () => tensor([4099], 1)[name]());
  }
  for (const name of ['log', 'log1p', 'sqrt', 'rsqrt']) {
    keep(name, () => tensor([4099], 2).abs()[name]());
  }
  for (const name of ['softmax', 'logSoftmax', 'logsumexp', 'cumsum', 'sum', 'mean', 'var']) {
    keep(name, () => tensor([33, 257], 3)[name](-1));
  }
  for (const dtype of ['bf16', 'f16']) {
    keep(`round to ${dtype}`, () => tensor([4099], 4, dtype));
    keep(`tanh in ${dtype}`, () => tensor([4099], 4, dtype).tanh());
    for (const rows of [1, 3, 8, 9]) {
      const weights = () => tensor([96, 512], 6, dtype).transpose(0, 1);
      keep(`${dtype} product of ${rows}`, () => tensor([rows, 512], 5, dtype).matmul(weights()));
    }
  }
  for (const rows of [1, 3, 8, 9, 64]) {
    const weights = () => tensor([96, 512], 6).transpose(0, 1);
    keep(`f32 product of ${rows}`, () => tensor([rows, 512], 5).matmul(weights()));
  }
  return out;
}

const files = process.argv.slice(2);
if (files.length === 0) {
  console.log(JSON.stringify(results(), null, 2));
} else {
  const [a, b] = files.map((file) => JSON.parse(readFileSync(file, 'utf8')));
  const wrong = [];
  let count = 0;
  for (const name of Object.keys(a)) {
    const equal = a[name] === b[name];
    console.log(`${name.padEnd(24)} ${equal ? 'equal' : 'different'}`);
    if (equal) count++;
    if (!equal && !MAY_DIFFER.test(name)) wrong.push(name);
  }
  console.log(`${count} of ${Object.keys(a).length} are equal`);
  if (wrong.length > 0) {
    console.error(`expected equal bits, got differences in: ${wrong.join(', ')}`);
    process.exitCode = 1;
  }
}
