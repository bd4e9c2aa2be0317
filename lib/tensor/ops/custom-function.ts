// User-written differentiable functions.
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { requireType } from '../../runtime/require-type.js';
import { describe } from '../../runtime/view.js';
import { type GradSink, noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { notTensorError, requireTensor, sameShape, shapeError } from './shapes.js';

/** State that forward keeps for backward. */
export class FunctionContext {
  /** @internal */
  held: readonly Tensor[] = [];
  /** Values of the function (shapes, numbers); tensors belong in save(). */
  readonly values: Record<string, unknown> = {};

  /** Keeps tensors alive until the backward has run. Throws DS_ARGUMENT unless all are tensors. */
  save(...tensors: Tensor[]): void {
    for (const tensor of tensors) requireTensor('FunctionContext.save', tensor);
    this.held = tensors;
  }

  /** The tensors of save(). */
  get saved(): readonly Tensor[] {
    return this.held;
  }
}

/** A function of tensors and its gradient, for customFunction(). */
export interface CustomFunction<Result extends Tensor | Tensor[]> {
  /** The name in errors. */
  name?: string;
  /** Runs without recording. */
  forward(context: FunctionContext, ...inputs: Tensor[]): Result;
  /**
   * Returns the gradients of the inputs, in their order, shapes and dtypes; null for an input
   * without a gradient. A missing gradient of an output is null.
   */
  backward(
    context: FunctionContext,
    ...grads: (Tensor | null)[]
  ): Tensor | null | readonly (Tensor | null)[];
}

/**
 * Creates a function of tensors with the gradient `backward`, as torch.autograd.Function. Throws
 * DS_ARGUMENT if `forward` returns no tensor. Its backward throws DS_ARGUMENT if `backward` omits
 * an input that requires a gradient, DS_SHAPE for a gradient of another shape.
 */
export function customFunction<Result extends Tensor | Tensor[]>(
  definition: CustomFunction<Result>,
): (...inputs: Tensor[]) => Result {
  if (Object(definition) !== definition) {
    throw valueError('customFunction', 'an object with forward and backward', definition);
  }
  const { name = 'custom_function' } = definition;
  requireType(`${name} forward`, definition.forward, 'function');
  requireType(`${name} backward`, definition.backward, 'function');
  return (...inputs) => {
    const context = new FunctionContext();
    const result = noGrad(() => definition.forward(context, ...inputs));
    const list: readonly unknown[] = Array.isArray(result) ? result : [result];
    const outputs = list.map((out) => createOutput(name, out, inputs));
    const { length } = inputs;
    record(name, inputs, outputs, context.saved, (grads, sink) => {
      addGrads(name, definition.backward(context, ...grads), length, sink);
    });
    return (Array.isArray(result) ? outputs : outputs[0]) as Result;
  };
}

/** Returns `out`, or an alias if it is an input or has a node already. */
function createOutput(name: string, out: unknown, inputs: readonly Tensor[]): Tensor {
  requireTensor(`${name} forward`, out);
  return out.requiresGrad || inputs.includes(out) ? out.detach() : out;
}

/** Passes the gradients that a user's backward has returned, one for each input, to `sink`. */
function addGrads(name: string, returned: unknown, inputs: number, sink: GradSink): void {
  if (returned === null) return;
  const op = `${name} backward`;
  const grads: readonly unknown[] = Array.isArray(returned) ? returned : [returned];
  if (grads.length > inputs) {
    throw argumentError(op, `a gradient, or null, for each of ${inputs} inputs`, `${grads.length}`);
  }
  for (let i = 0; i < inputs; ++i) {
    const grad = grads[i];
    if (grad === null || !sink.needs(i)) continue;
    if (!(grad instanceof Tensor)) {
      const hint = 'Return one gradient per input, in order; null for an input without a gradient.';
      throw notTensorError(op, `the gradient of input ${i}, or null`, grad, hint);
    }
    const shape = sink.shapeOf(i);
    if (!sameShape(grad.shape, shape)) {
      const expected = `the gradient of input ${i}, of shape [${shape.join(', ')}]`;
      throw shapeError(op, expected, describe(grad), 'A gradient has the shape of its input.');
    }
    sink.addGrad(i, grad);
  }
}
