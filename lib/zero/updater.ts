// How an update goes over the partitions: in one pass, or in several between which ranks share what they know.
import type { Tensor } from '../tensor/index.js';
import type { Placement, Published, UpdatePlan } from './placement.js';

/** Chosen once; used in place of Placement.update(), whose contract it has. */
export interface Updater {
  update(control: Tensor, plan: UpdatePlan, published: Published): void;
  dispose(): void;
}

/** Every range by itself: for rules that work by element, and for ranks that hold whole parameters. */
export class DirectUpdates implements Updater {
  constructor(private readonly placement: Placement) {}

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    this.placement.update(control, plan, published);
  }

  dispose(): void {}
}

/** One updater after the other, each over partitions of its own. Owns them. */
export class SuccessiveUpdates implements Updater {
  constructor(private readonly updaters: readonly Updater[]) {}

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    for (const updater of this.updaters) updater.update(control, plan, published);
  }

  dispose(): void {
    for (const updater of this.updaters) updater.dispose();
  }
}
