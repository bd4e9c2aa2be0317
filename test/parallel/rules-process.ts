// One rank that trains a custom model with tensor_parallel.partition_config, and reports the split.
import { distributed } from '../../lib/comm/index.js';
import { type DsConfig, DsError, initialize, nn, seed, Tensor } from '../../lib/index.js';

class Mlp extends nn.Module {
  readonly up = new nn.Linear(8, 16);
  readonly down = new nn.Linear(16, 8);

  override forward(x: Tensor): Tensor {
    return this.down.call(this.up.call(x).relu());
  }
}

class Net extends nn.Module {
  readonly a = new Mlp();
  readonly b = new Mlp();

  override forward(x: Tensor): Tensor {
    return this.b.call(this.a.call(x)).square().mean();
  }
}

/** Two layers in one: half of the outputs of `both` are factors of the other half. */
class Fused extends nn.Module {
  readonly both = new nn.Linear(8, 32);
  readonly down = new nn.Linear(16, 8);

  override forward(x: Tensor): Tensor {
    const both = this.both.call(x);
    const half = both.size(-1) / 2;
    const gated = both.narrow(-1, 0, half).mul(both.narrow(-1, half, half));
    return this.down.call(gated).square().mean();
  }
}

async function train({ fused, ...section }: { fused?: boolean }): Promise<unknown> {
  seed(3);
  const config = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    gradient_clipping: 0.1,
    tensor_parallel: section,
  } as DsConfig;
  const model = fused ? new Fused() : new Net();
  try {
    const { engine } = await initialize({ model, config, device: 'cpu' });
    const values = Float32Array.from({ length: 16 }, (_, i) => Math.sin(i));
    const x = Tensor.from(values, { shape: [2, 8] });
    const losses = Array.from({ length: 3 }, () => {
      const loss = engine.forward<Tensor>(x);
      engine.backward(loss);
      engine.step();
      return loss.item();
    });
    engine.destroy();
    const layers = model instanceof Net ? [model.a.up, model.b.up] : [model.both];
    return { losses, rows: layers.map(({ weight }) => weight.shape[0]) };
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    return `${error.code} ${error.message}`;
  }
}

async function main(sections: object[]): Promise<void> {
  const reports: unknown[] = [];
  for (const section of sections) reports.push(await train(section));
  await distributed()?.destroy();
  console.log(JSON.stringify(reports));
}

void main(JSON.parse(process.argv[2] ?? '') as object[]);
