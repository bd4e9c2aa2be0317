// Tests the FLOPs profiler: exact counts, the module of each count, and no overhead outside a
// profile.
import assert from 'node:assert/strict';
import { FlopsProfiler, getModelProfile, nn, type profiler, Tensor } from '../../lib/index.js';
import { type Device, device as findDevice } from '../../lib/runtime/device.js';
import { attention, checkpoint, layerNorm, noGrad, scope, seed } from '../../lib/tensor/index.js';
import { tinyBatch, tinyModel, tinyShape } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { gpt2Macs, relative } from './closed-form.js';

/** Runs forward and backward of `body`'s scalar under a profile of `model`. */
function profileModel(model: nn.Module, body: () => Tensor): profiler.ModelProfile {
  const flops = new FlopsProfiler(model);
  flops.startProfile();
  try {
    scope(() => body().backward());
    return flops.profile();
  } finally {
    flops.endProfile();
    dropGrads(model);
  }
}

function dropGrads(model: nn.Module): void {
  for (const parameter of model.parameters()) {
    parameter.grad?.release();
    parameter.grad = null;
  }
}

/** The module at `path`. */
function at({ model }: profiler.ModelProfile, ...path: string[]): profiler.ModuleProfile {
  let found = model;
  for (const name of path) {
    const child = found.children.find((c) => c.name === name);
    assert.ok(child, `no ${name} in ${found.children.map((c) => c.name)}`);
    found = child;
  }
  return found;
}

const constant = (shape: number[], device: Device): Tensor =>
  Tensor.from(new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(0.5), { shape, device });

class Mixture extends nn.Module {
  readonly first = new nn.LinearGelu(5, 7);
  readonly second = new nn.Linear(7, 3);
  readonly norm = new nn.LayerNorm(3);

  override forward(x: Tensor): Tensor {
    const y = this.second.call(this.first.call(x));
    return layerNorm(y, this.norm.weight, this.norm.bias, this.norm.eps);
  }
}

/** Every number by hand: a GEMM of 11 rows, GELU, a second GEMM, and a norm in the parent. */
function byHand(device: Device): void {
  const model = new Mixture().to(device);
  const profile = profileModel(model, () => model.call(constant([11, 5], device)).mean());
  const [one, two, norm] = ['first', 'second', 'norm'].map((name) => at(profile, name));
  assert.deepEqual(one?.work.forward, { macs: 11 * 5 * 7, flops: 2 * 11 * 5 * 7 + 11 * 7 });
  assert.deepEqual(two?.work.forward, { macs: 11 * 7 * 3, flops: 2 * 11 * 7 * 3 });
  assert.deepEqual(norm?.work.forward, { macs: 0, flops: 0 }, 'fused');
  assert.equal(norm?.calls, 0);
  // The parent runs the norm; the mean is outside every module and belongs to the root.
  assert.equal(profile.model.own.forward.macs, 0);
  assert.ok(profile.model.own.forward.flops >= 5 * 33 + 33);
  // x needs no gradient: the first layer computes one product in its backward, the second two.
  assert.equal(one?.work.backward.macs, 11 * 5 * 7);
  assert.equal(two?.work.backward.macs, 2 * 11 * 7 * 3);
  assert.deepEqual(profile.work.recompute, { macs: 0, flops: 0 });
  assert.equal(profile.parameters, 5 * 7 + 7 + 7 * 3 + 3 + 6);
  assert.equal(profile.model.share.macs, 1);
}

/** The counts of `body` in a model with this call only. */
function countOf(body: () => Tensor, device: Device): profiler.PassWork {
  class Body extends nn.Module {
    override forward(): Tensor {
      return body();
    }
  }
  const flops = new FlopsProfiler({ module: new Body(), device });
  flops.startProfile();
  try {
    scope(() => flops.module.call().sum().backward());
    return flops.profile().work;
  } finally {
    flops.endProfile();
  }
}

function matrixProducts(device: Device): void {
  const leaf = (...shape: number[]): Tensor => constant(shape, device).requireGrad();
  const batch = countOf(() => leaf(2, 3, 5).matmul(leaf(2, 5, 7)), device);
  assert.equal(batch.forward.macs, 2 * 3 * 5 * 7);
  assert.equal(batch.backward.macs, 2 * (2 * 3 * 5 * 7));
  const packed = nn.QuantizedLinear.from(new nn.Linear(16, 5).to(device), { bits: 8 });
  assert.equal(countOf(() => packed.call(leaf(3, 16)), device).forward.macs, 3 * 16 * 5);
  const turned = countOf(
    () => leaf(5, 3).transpose(0, 1).matmul(leaf(7, 5).transpose(0, 1)),
    device,
  );
  assert.equal(turned.forward.macs, 3 * 5 * 7);
  assert.equal(turned.backward.macs, 2 * (3 * 5 * 7));
  const [B, H, T, D] = [2, 3, 6, 8];
  const heads = (): Tensor => leaf(B, H, T, D);
  const full = countOf(() => attention(heads(), heads(), heads(), {}), device);
  assert.equal(full.forward.macs, 2 * B * H * T * T * D);
  const causal = countOf(() => attention(heads(), heads(), heads(), { causal: true }), device);
  assert.equal(causal.forward.macs, B * H * T * T * D);
  assert.equal(causal.backward.macs, 2 * B * H * T * T * D);
  const windowed = countOf(
    () => attention(heads(), heads(), heads(), { causal: true, window: 4 }),
    device,
  );
  assert.equal(windowed.forward.macs, 2 * B * H * D * ((T * T) / 2 - (T - 4) ** 2 / 2));
  const band = countOf(() => attention(heads(), heads(), heads(), { window: 4 }), device);
  assert.equal(band.forward.macs, 2 * B * H * D * (T * T - (T - 4) ** 2));
  const empty = countOf(() => leaf(0, 5).matmul(leaf(5, 7)), device);
  assert.equal(empty.forward.macs, 0);
}

const { batch: B, seq: T, vocabulary: V } = tinyShape;
const tinyPublished = { channels: 36, layers: 2, vocabulary: V, batch: B, seq: T };

function tinyProfile(device: Device, checkpointing: boolean | 'selective'): profiler.ModelProfile {
  seed(7);
  const model = tinyModel({ model: { activationCheckpointing: checkpointing } }).to(device);
  const { tokens, targets } = tinyBatch(0, device);
  const profile = profileModel(model, () => model.call(tokens, targets));
  for (const tensor of [tokens, targets]) tensor.dispose();
  return profile;
}

function gpt2(device: Device): void {
  const profile = tinyProfile(device, false);
  const { blocks, headWide } = gpt2Macs(tinyPublished);
  assert.equal(profile.work.forward.macs, blocks + headWide);
  // Both gradients of every matmul; the head has padded columns.
  assert.equal(profile.work.backward.macs, 2 * blocks + 2 * headWide);
  assert.deepEqual(profile.work.recompute, { macs: 0, flops: 0 });
  const block = at(profile, 'transformer', 'h.0');
  assert.equal(block.work.forward.macs, blocks / 2);
  assert.equal(block.own.forward.flops, 6 * B * T * 36, 'ln_2 with its addition');
  const attn = at(profile, 'transformer', 'h.1', 'attn');
  assert.equal(attn.own.forward.macs, B * T * T * 36, 'attention itself');
  assert.equal(attn.own.backward.macs, 2 * B * T * T * 36);
  assert.equal(profile.model.own.forward.macs, headWide, 'the fused head');
}

/**
 * The same forward and gradients. Each block runs a second time, in its own module, without its
 * last matmul.
 */
function recomputation(device: Device): void {
  const plain = tinyProfile(device, false).work;
  const profile = tinyProfile(device, true);
  const { blocks, headWide } = gpt2Macs(tinyPublished);
  const last = B * T * 4 * 36 * 36;
  assert.equal(profile.work.forward.macs, plain.forward.macs);
  assert.equal(profile.work.recompute.macs, blocks - 2 * last + headWide);
  assert.equal(profile.work.backward.macs, plain.backward.macs);
  assert.equal(profile.model.own.recompute.macs, headWide, 'logits of the fused loss');
  for (const name of ['h.0', 'h.1']) {
    const block = at(profile, 'transformer', name);
    assert.equal(block.work.recompute.macs, block.work.forward.macs - last);
    const products = ['attn', 'mlp'].map((part) =>
      at(profile, 'transformer', name, part).children.map(({ work }) => work.recompute.macs),
    );
    const token = B * T * 36 * 36;
    assert.deepEqual(products, [
      [3 * token, token],
      [4 * token, 0],
    ]);
    assert.equal(block.work.backward.macs, 2 * block.work.forward.macs);
    assert.equal(block.calls, 1);
    assert.ok(block.recomputeMs > 0);
  }
}

/** GELU and norms of both blocks again, and no matmul. */
function selective(device: Device): void {
  const plain = tinyProfile(device, false).work;
  const { work } = tinyProfile(device, 'selective');
  assert.deepEqual(work.forward, plain.forward);
  assert.deepEqual(work.backward, plain.backward);
  assert.equal(work.recompute.macs, 0);
  const [gelu, norm] = [B * T * 4 * 36, 5 * B * T * 36];
  assert.equal(work.recompute.flops, 2 * gelu + 4 * norm);
}

/** Modules in a segment without a module around its additions, and a checkpoint in a checkpoint. */
function nestedSegments(device: Device): void {
  const model = new Mixture().to(device);
  const inner = (x: Tensor): Tensor => checkpoint((y) => model.first.call(y).mul(2), x);
  const x = constant([11, 5], device).keep();
  const profile = profileModel(model, () =>
    checkpoint((y) => model.second.call(inner(y)), x).mean(),
  );
  const first = at(profile, 'first').work;
  assert.equal(first.forward.macs, 11 * 5 * 7);
  assert.equal(first.recompute.macs, 2 * (11 * 5 * 7), 'once for each segment around it');
  assert.equal(first.backward.macs, 11 * 5 * 7);
  assert.equal(at(profile, 'second').work.recompute.macs, 0, 'nothing reads it');
  x.dispose();
}

function sums(device: Device): void {
  const profile = tinyProfile(device, true);
  const visit = (node: profiler.ModuleProfile): void => {
    for (const pass of ['forward', 'backward', 'recompute'] as const) {
      const parts = node.children.map((child) => child.work[pass].flops);
      const sum = parts.reduce((a, b) => a + b, node.own[pass].flops);
      assert.equal(node.work[pass].flops, sum, `${node.name} ${pass}`);
    }
    const inner = node.children.reduce((sum, { latencyMs }) => sum + latencyMs, 0);
    assert.ok(Math.abs(node.latencyMs - inner - node.ownLatencyMs) < 1e-6, node.name);
    // Each event is rounded to half a microsecond.
    if (node.calls > 0) assert.ok(node.latencyMs > 0 && node.ownLatencyMs > -0.05, node.name);
    node.children.forEach(visit);
  };
  visit(profile.model);
}

class Fragile extends nn.Module {
  fail = true;
  readonly inner = new nn.Linear(4, 4);

  override forward(x: Tensor): Tensor {
    const y = this.inner.call(x);
    if (this.fail) throw new Error('as asked');
    return y;
  }
}

class Patient extends nn.Module {
  readonly fragile = new Fragile();
  readonly after = new nn.Linear(4, 4);

  override forward(x: Tensor): Tensor {
    try {
      this.fragile.call(x);
    } catch {
      this.fragile.fail = false;
    }
    return this.after.call(x.add(1));
  }
}

/** A caller that catches the error calls the model again: counts are as without the first call. */
function exceptionsOutside(device: Device): void {
  const model = new Mixture().to(device);
  const wrong = constant([11, 4], device).keep();
  const run = (): Tensor => model.call(constant([11, 5], device)).mean();
  const { model: alone } = profileModel(model, run);
  const { model: root } = profileModel(model, () => {
    assert.throws(() => model.call(wrong), { code: 'DS_SHAPE' });
    return run();
  });
  assert.equal(root.calls, 1);
  assert.deepEqual(root.work, alone.work);
  for (const name of ['first', 'second'] as const) {
    const of = (fullModuleProfile: profiler.ModuleProfile) =>
      fullModuleProfile.children.find((moduleProfile) => moduleProfile.name === name);
    assert.deepEqual(of(root)?.work, of(alone)?.work, name);
  }
  const all = [root, ...root.children];
  for (const { name, ownLatencyMs: own } of all) assert.ok(own >= 0, `${name}: ${own} ms`);
  wrong.dispose();
}

function exceptions(device: Device): void {
  const model = new Patient().to(device);
  const flops = new FlopsProfiler(model);
  flops.startProfile();
  scope(() => noGrad(() => void model.call(constant([3, 4], device))));
  const { model: root } = flops.profile();
  flops.endProfile();
  const [fragile, after] = root.children;
  assert.equal(fragile?.calls, 0);
  assert.equal(fragile?.work.forward.macs, 48, 'what ran before the exception');
  assert.equal(after?.calls, 1);
  assert.equal(after?.own.forward.macs, 48);
}

function ends(device: Device): void {
  const model = new Mixture().to(device);
  const flops = new FlopsProfiler(model);
  const run = (): void => scope(() => noGrad(() => void model.call(constant([11, 5], device))));
  assert.throws(() => flops.getTotalFlops(), /startProfile\(\) before/);
  flops.startProfile();
  assert.throws(() => new FlopsProfiler(new Mixture()).startProfile(), /one observer at a time/);
  run();
  const once = flops.getTotalMacs();
  assert.equal(once, 11 * 5 * 7 + 11 * 7 * 3);
  flops.stopProfile();
  run();
  assert.equal(flops.getTotalMacs(), once, 'counted after stopProfile()');
  flops.startProfile();
  run();
  run();
  assert.equal(flops.getTotalMacs(), 2 * once);
  flops.resetProfile();
  run();
  assert.equal(flops.getTotalMacs(), once);
  assert.ok(flops.getTotalDuration() > 0);
  flops.endProfile();
  assert.throws(() => flops.profile(), /no profile/);
}

function oneCall(device: Device): void {
  const model = tinyModel().to(device);
  const { tokens, targets } = tinyBatch(0, device);
  const { macs, flops, parameters, json } = getModelProfile(model, [tokens, targets], {
    printProfile: false,
  });
  const { blocks, headWide } = gpt2Macs(tinyPublished);
  assert.equal(macs, blocks + headWide);
  assert.ok(relative(flops, 2 * macs) < 0.05);
  assert.equal(parameters, model.numParameters());
  assert.equal(json.model.calls, 1, 'warm-up passes are not counted');
  assert.equal(json.device, findDevice(device).name);
  for (const tensor of [tokens, targets]) tensor.dispose();
}

export const cases: Case[] = [
  { name: 'flops profiler: counts of two layers by hand', run: byHand },
  { name: 'flops profiler: products of matrices and of attention', run: matrixProducts },
  { name: 'flops profiler: GPT-2 is its closed formula, MAC for MAC', run: gpt2 },
  { name: 'flops profiler: recomputation is counted separately', run: recomputation },
  { name: 'flops profiler: selective recomputation', run: selective },
  { name: 'flops profiler: segments within segments', run: nestedSegments },
  { name: 'flops profiler: parts and rest make the whole', run: sums },
  { name: 'flops profiler: a module that throws', run: exceptions },
  { name: 'flops profiler: a call that throws, and another one', run: exceptionsOutside },
  { name: 'flops profiler: counts from start to stop and never else', run: ends },
  { name: 'flops profiler: getModelProfile', run: oneCall },
];
