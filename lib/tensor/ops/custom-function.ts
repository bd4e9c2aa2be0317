// User-written differentiable functions.
import { noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';

/** What forward leaves for backward. */
export class FunctionContext {
  /** @internal */
  held: readonly Tensor[] = [];
  /** Free for the function's own values (shapes, numbers); tensors belong in save(). */
  readonly values: Record<string, unknown> = {};

  /** Keeps tensors alive until the backward has run. */
  save(...tensors: Tensor[]): void {
    this.held = tensors;
  }

  /** What save() got. */
  get saved(): readonly Tensor[] {
    return this.held;
  }
}

/** A missing output gradient is null; a null result means that the input gets none. */
export interface CustomFunction<Result extends Tensor | Tensor[]> {
  /** What errors call it. */
  name?: string;
  /** Runs without recording. */
  forward(context: FunctionContext, ...inputs: Tensor[]): Result;
  /** Gradients of the inputs, in their order, shapes and dtypes. */
  backward(
    context: FunctionContext,
    ...grads: (Tensor | null)[]
  ): Tensor | null | readonly (Tensor | null)[];
}

/** Makes a function of tensors whose gradient is `backward`, as torch.autograd.Function. */
export function customFunction<Result extends Tensor | Tensor[]>(
  definition: CustomFunction<Result>,
): (...inputs: Tensor[]) => Result {
  return (...inputs) => {
    const context = new FunctionContext();
    const result = noGrad(() => definition.forward(context, ...inputs));
    const list = Array.isArray(result) ? result : [result];
    const outputs = list.map((out) => (inputs.includes(out) ? out.detach() : out));
    record(definition.name ?? 'custom_function', inputs, outputs, context.saved, (grads, sink) => {
      const given = definition.backward(context, ...grads);
      const each = given === null || given instanceof Tensor ? [given] : given;
      each.forEach((grad, i) => {
        if (grad) sink.give(i, grad);
      });
    });
    return (Array.isArray(result) ? outputs : outputs[0]) as Result;
  };
}
