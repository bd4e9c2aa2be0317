// Models with structures that are hard for sharded weights: shared, skipped, reordered and nested
// modules.
import { checkpoint, nn, scope, Tensor } from '../../lib/index.js';

export const width = 12;

export const meanSquare = (x: Tensor): Tensor => x.to('f32').square().mean();

/** Odd sizes, so that shards cut parameters. */
export class Block extends nn.Module {
  readonly up: nn.Linear;
  readonly down = new nn.Linear(17, width);

  constructor(shared: nn.Linear | null = null) {
    super();
    this.up = shared ?? new nn.Linear(width, 17);
  }

  override forward(x: Tensor): Tensor {
    return x.add(this.down.call(this.up.call(x).relu()));
  }
}

/** Order of blocks per step; a block may run several times, or not at all. */
export type Route = (step: number) => readonly number[];

export interface NetOptions {
  route?: Route;
  /** Block 2 shares the first layer of block 0. */
  tied?: boolean;
  checkpointed?: boolean;
  block?: () => nn.Module;
}

/** forward(x [B, 5]) is the mean square of [B, 3]. */
export class Net extends nn.Module {
  step = 0;
  readonly first = new nn.Linear(5, width);
  readonly blocks: nn.Module[];
  readonly last = new nn.Linear(width, 3);
  protected readonly options: NetOptions;

  constructor(options: NetOptions = {}) {
    super();
    this.options = options;
    const make = options.block ?? (() => new Block());
    this.blocks = [make(), make(), make()];
    if (options.tied) this.blocks[2] = new Block((this.blocks[0] as Block).up);
  }

  override forward(x: Tensor): Tensor {
    let hidden: Tensor = this.first.call(x);
    for (const index of this.options.route?.(this.step) ?? [0, 1, 2]) {
      hidden = this.through(this.blocks[index] as nn.Module, hidden);
    }
    return meanSquare(this.last.call(hidden));
  }

  protected through(block: nn.Module, x: Tensor): Tensor {
    if (this.options.checkpointed) return checkpoint((tensor: Tensor) => block.call(tensor), x);
    return block.call(x) as Tensor;
  }
}

/** Frozen layers with a trained low-rank branch that stays in f32 in a bf16 run. */
export class AdaptedBlock extends Block {
  readonly narrow = new nn.Linear(width, 2, { bias: false });
  readonly widen = new nn.Linear(2, width, { bias: false });

  constructor() {
    super();
    for (const parameter of [...this.up.parameters(), ...this.down.parameters()]) {
      parameter.requireGrad(false);
    }
    for (const { weight } of [this.narrow, this.widen]) weight.fixedDtype = 'f32';
  }

  override forward(x: Tensor): Tensor {
    const { dtype } = this.narrow.weight;
    return super.forward(x).add(this.widen.call(this.narrow.call(x.to(dtype))).to(x.dtype));
  }
}

/** An f32 matrix that two ranks split, next to layers in bf16. */
export class MixedBlock extends Block {
  readonly mix = new nn.Linear(width, width, { bias: false });

  constructor() {
    super();
    this.mix.weight.fixedDtype = 'f32';
  }

  override forward(x: Tensor): Tensor {
    const { dtype } = this.mix.weight;
    return super.forward(x).add(this.mix.call(x.to(dtype)).to(x.dtype));
  }
}

/** Uses one layer twice in a forward. */
export class TwiceBlock extends Block {
  override forward(x: Tensor): Tensor {
    const once = x.add(this.down.call(this.up.call(x).relu()));
    return once.add(this.down.call(this.up.call(once.mul(0.5)).relu()));
  }
}

/** Returns its result inside a Map inside a list inside an object. */
export class NestedBlock extends Block {
  override forward(x: Tensor): never {
    return { deep: [new Map([['value', super.forward(x)]])], none: null } as never;
  }
}

export class NestedNet extends Net {
  constructor() {
    super({ block: () => new NestedBlock() });
  }

  protected override through(block: nn.Module, x: Tensor): Tensor {
    const { deep } = block.call(x) as { deep: [Map<string, Tensor>] };
    return deep[0].get('value') as Tensor;
  }
}

/** The root has parameters and returns the result of its last block: two units, one tensor. */
export class PassingNet extends Net {
  override forward(x: Tensor): Tensor {
    let hidden: Tensor = this.first.call(x);
    for (const block of this.blocks) hidden = this.through(block, hidden);
    return hidden;
  }
}

/** Adds a parameter that another module has too. */
class Shift extends nn.Module {
  constructor(readonly bias: nn.Parameter) {
    super();
  }

  override forward(x: Tensor): Tensor {
    return x.add(this.bias).tanh();
  }
}

/** A module below the root, called before the blocks, shares a parameter with one of them. */
export class SharingNet extends Net {
  readonly shift = new Shift((this.blocks[1] as Block).down.bias as nn.Parameter);

  override forward(x: Tensor): Tensor {
    let hidden: Tensor = this.shift.call(this.first.call(x));
    for (const block of this.blocks) hidden = this.through(block, hidden);
    return meanSquare(this.last.call(hidden));
  }
}

/** Reads another module's weight in its forward. */
export class BorrowingBlock extends nn.Module {
  readonly own = new nn.Linear(width, width);
  private readonly lender: () => nn.Parameter;

  constructor(lender: () => nn.Parameter) {
    super();
    this.lender = lender;
  }

  override forward(x: Tensor): Tensor {
    return x.add(this.own.call(x).matmul(this.lender().transpose(0, 1)).relu().narrow(1, 0, width));
  }
}

export class BorrowingNet extends Net {
  constructor(register: (module: nn.Module, parameter: nn.Parameter) => void) {
    super();
    const { weight } = (this.blocks[0] as Block).up;
    const borrower = new BorrowingBlock(() => weight);
    this.blocks[2] = borrower;
    register(borrower, weight);
  }
}

/** Without an array of modules: one unit. */
export class FlatNet extends nn.Module {
  readonly first = new nn.Linear(5, width);
  readonly last = new nn.Linear(width, 3);

  override forward(x: Tensor): Tensor {
    return meanSquare(this.last.call(this.first.call(x).tanh()));
  }
}

/** Buffers of every dtype; one is empty, one is a view with strides. */
export class BufferedNet extends FlatNet {
  readonly scale = makeBuffer([2, 3, 4], 'f32', [3]);
  readonly shift = makeBuffer([1, 2, 3], 'bf16', [3]);
  readonly half = makeBuffer([0.5, 0.25, 1], 'f16', [3]);
  readonly count = makeBuffer([7, 8], 'i64', [2]);
  readonly mask = makeBuffer([1, 0, 1], 'u8', [3]);
  readonly none = makeBuffer([], 'f32', [0]);

  override forward(x: Tensor): Tensor {
    const out = this.last.call(this.first.call(x).tanh());
    const { dtype } = out;
    return meanSquare(out.mul(this.scale.to(dtype)).add(this.shift.to(dtype)));
  }
}

function makeBuffer(
  values: number[],
  dtype: 'bf16' | 'f16' | 'i64' | 'u8' | 'f32',
  shape: number[],
) {
  return scope(() => Tensor.from(values, { dtype, shape })).keep();
}

/** Throws on demand in the forward or in the backward. */
export class FailingNet extends Net {
  fails: 'forward' | 'backward' | null = null;

  protected override through(block: nn.Module, x: Tensor): Tensor {
    const last = block === this.blocks[1];
    if (last && this.fails === 'forward') throw new Error('forward fails');
    if (!last || this.fails !== 'backward') return super.through(block, x);
    let replays = 0;
    return checkpoint((tensor: Tensor) => {
      if (replays++ > 0) throw new Error('backward fails');
      return block.call(tensor) as Tensor;
    }, x);
  }
}
