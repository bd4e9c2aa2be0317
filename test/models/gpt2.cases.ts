// Compares a tiny GPT-2 in recorded weights with PyTorch: logits, gradients, steps, bf16.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { Parameter } from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { held, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { Golden, relativeError } from './golden.js';

const path = join(packageRoot(), 'test', 'golden', 'gpt2-tiny');

function golden(name: string, body: (golden: Golden, device: Device) => void): Case {
  return {
    name: `GPT-2 parity with PyTorch: ${name}`,
    async run(device) {
      const recorded = await Golden.read(path, device);
      try {
        scope(() => body(recorded, device));
      } finally {
        recorded.release();
      }
    },
  };
}

function dropGradients(parameters: readonly Parameter[]): void {
  for (const parameter of parameters) {
    parameter.grad?.release();
    parameter.grad = null;
  }
}

/** Master weights and moments of one parameter; AdamW runs without clipping. */
class Adam {
  private readonly control: Tensor;
  private readonly states: { parameter: Parameter; m: Tensor; v: Tensor }[];

  constructor(
    parameters: readonly Parameter[],
    private readonly options: NonNullable<Golden['description']['adamw']>,
  ) {
    const { device } = parameters[0] as Parameter;
    const zeros = ({ numel }: Parameter): Tensor => {
      const out = Tensor.empty([numel], 'f32', device);
      kernels.fill({ out, value: 0 });
      return out;
    };
    this.control = Tensor.from([1, 1, 0, 1], { device });
    this.states = parameters.map((p) => ({ parameter: p, m: zeros(p), v: zeros(p) }));
  }

  step(t: number): void {
    const { beta1, beta2 } = this.options;
    for (const { parameter, m, v } of this.states) {
      const flat = (x: Tensor): Tensor => held(() => x.alias([x.numel]));
      const [master, grad] = [flat(parameter), flat(parameter.grad as Tensor)];
      kernels.adamW({
        master,
        m,
        v,
        grad,
        weight: null,
        control: this.control,
        ...this.options,
        correction1: 1 - beta1 ** t,
        correction2: 1 - beta2 ** t,
        decoupled: true,
      });
      master.release();
      grad.release();
    }
  }
}

export const cases: Case[] = [
  golden('logits and loss', (recorded, device) => {
    const model = recorded.model(device);
    const [tokens, targets] = [recorded.tensor('tokens'), recorded.tensor('targets')];
    noGrad(() => {
      const error = relativeError(
        model.call(tokens).toArray(),
        recorded.tensor('logits').toArray(),
      );
      assert.ok(error < 1e-5, `logits: relative error ${error}`);
      const loss = model.call(tokens, targets).item();
      assert.ok(Math.abs(loss / recorded.description.loss - 1) < 1e-6, `loss ${loss}`);
    });
  }),
  ...[false, true].map((checkpointing) =>
    golden(`gradients${checkpointing ? ', activation checkpointing' : ''}`, (recorded, device) => {
      const model = recorded.model(device);
      model.config.activationCheckpointing = checkpointing;
      model.call(recorded.tensor('tokens'), recorded.tensor('targets')).backward();
      const parameters = new Map(model.namedParameters());
      for (const [name, expected] of recorded.group('gradient.')) {
        const { grad } = parameters.get(name) as Parameter;
        const error = relativeError((grad as Tensor).toArray(), expected.toArray());
        assert.ok(error < 1e-4, `gradient of ${name}: relative error ${error}`);
      }
      dropGradients(model.parameters());
    }),
  ),
  golden('ten AdamW steps', (recorded, device) => {
    const { adamw, adamwLosses } = recorded.description;
    assert.ok(adamw && adamwLosses);
    const model = recorded.model(device);
    const parameters = model.parameters();
    const adam = new Adam(parameters, adamw);
    adamwLosses.forEach((expected, i) => {
      const loss = scope(() => {
        const out = model.call(recorded.tensor('tokens'), recorded.tensor('targets'));
        out.backward();
        adam.step(i + 1);
        dropGradients(parameters);
        return out.item();
      });
      assert.ok(
        Math.abs(loss - expected) < 1e-4,
        `step ${i + 1}: loss ${loss}, PyTorch ${expected}`,
      );
    });
  }),
  golden('bf16', (recorded, device) => {
    const model = recorded.model(device).to('bf16');
    const [tokens, targets] = [recorded.tensor('tokens'), recorded.tensor('targets')];
    noGrad(() => {
      const exact = recorded.tensor('logits').toArray();
      const ours = relativeError(model.call(tokens).toArray(), exact);
      const referenceError = relativeError(recorded.tensor('logits.bf16').toArray(), exact);
      assert.ok(
        ours < 1.5 * referenceError,
        `bf16 logits are ${ours} from f32, PyTorch's are ${referenceError}`,
      );
      const loss = model.call(tokens, targets).item();
      assert.ok(Math.abs(loss - recorded.description.loss) < 0.01, `bf16 loss ${loss}`);
    });
  }),
];
