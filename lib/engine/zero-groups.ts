// ZeroGroups: for each parameter, the ranks over which ZeRO reduces and shards it.
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import type { WeightUnit } from '../zero/unit.js';

/** Ranks that hold the same parameters. They reduce gradients and divide state. */
export interface ZeroGroup {
  /** Part of the names of its units. Empty for the group of the model. */
  readonly name: string;
  /** The shard group. */
  readonly group: ProcessGroup;
  /**
   * Number of ranks with different samples. A gradient is the mean over these ranks, and the sum
   * over the other ranks of the group.
   */
  readonly dataRanks: number;
  /** Ranks with the same shard in other replicas (MiCS). Null without MiCS. */
  readonly replicas: ProcessGroup | null;
  /** Nearby ranks that divide a secondary copy of gathered weights (hpZ). Null without hpZ. */
  readonly secondary: ProcessGroup | null;
  /** The first of these ranks sends the initial values of the parameters. */
  readonly source: ProcessGroup;
  /**
   * Whether its ranks are in several pipeline stages. Stages update their units in different
   * orders, so each unit is published as soon as it is updated.
   */
  readonly spansStages: boolean;
}

/** Parameters with a ZeroGroup of their own, in the order of the model. */
export interface OwnGroup {
  group: ZeroGroup;
  parameters: readonly Tensor[];
}

/** Finds the ZeroGroup of a parameter. */
export class ZeroGroups {
  /** The group of the model, then the other groups. */
  readonly all: readonly ZeroGroup[];
  private readonly groupOf = new Map<Tensor, ZeroGroup>();

  constructor(
    /** The group of all parameters that are not in `own`. */
    readonly model: ZeroGroup,
    readonly own: readonly OwnGroup[] = [],
  ) {
    this.all = [model, ...own.map(({ group }) => group)];
    for (const { group, parameters } of own) {
      for (const parameter of parameters) this.groupOf.set(parameter, group);
    }
  }

  /** The shard groups of the groups in `own`. */
  get ownShardGroups(): ProcessGroup[] {
    return this.own.map(({ group }) => group.group);
  }

  of(parameter: Tensor): ZeroGroup {
    return this.groupOf.get(parameter) ?? this.model;
  }

  /** Returns the group of a unit. All parameters of a unit have the same group. */
  ofUnit({ parameters: [first] }: Pick<WeightUnit, 'parameters'>): ZeroGroup {
    return first ? this.of(first.parameter) : this.model;
  }
}
