// The records of parameter groups: the ranks over which ZeRO reduces and shards each parameter.
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import type { WeightUnit } from '../zero/unit.js';

/** The ranks that hold the same parameters. They reduce gradients and divide state. */
export interface ZeroGroup {
  /** Part of the names of its units; empty for the group of the model. */
  readonly name: string;
  /** The shard group. */
  readonly group: ProcessGroup;
  /**
   * Number of ranks with different samples. Gradients are means over these, and sums over other
   * ranks.
   */
  readonly dataRanks: number;
  /** Ranks with the same shard in other replicas (MiCS). */
  readonly replicas: ProcessGroup | null;
  /** Nearby ranks that divide a secondary copy of gathered weights (hpZ). */
  readonly secondary: ProcessGroup | null;
  /** The first values of its parameters come from the first of these ranks. */
  readonly source: ProcessGroup;
  /**
   * Whether its ranks are in several pipeline stages. They update their units in different orders,
   * so each updated unit is published at once.
   */
  readonly spansStages: boolean;
}

/** A record, and its parameters in the order of the model. */
export interface OwnGroup {
  group: ZeroGroup;
  parameters: readonly Tensor[];
}

/** Finds the record of a parameter. */
export class ZeroGroups {
  /** The group of the model, followed by the other groups. */
  readonly all: readonly ZeroGroup[];
  private readonly groupOf = new Map<Tensor, ZeroGroup>();

  constructor(
    /** The group of parameters without an own record. */
    readonly model: ZeroGroup,
    readonly own: readonly OwnGroup[] = [],
  ) {
    this.all = [model, ...own.map(({ group }) => group)];
    for (const { group, parameters } of own) {
      for (const parameter of parameters) this.groupOf.set(parameter, group);
    }
  }

  /** The shard groups of the other records. */
  get ownShardGroups(): ProcessGroup[] {
    return this.own.map(({ group }) => group.group);
  }

  of(parameter: Tensor): ZeroGroup {
    return this.groupOf.get(parameter) ?? this.model;
  }

  /** Returns the group of a unit: all its parameters have the same one. */
  ofUnit({ parameters: [first] }: Pick<WeightUnit, 'parameters'>): ZeroGroup {
    return first ? this.of(first.parameter) : this.model;
  }
}
