// Makes collectives fail on ranks that do not join a save or a load of this rank.
import type { CheckpointWorld } from '../../checkpoint/index.js';
import type { ProcessGroup } from '../../comm/index.js';
import { StoreWorld } from './store-world.js';

/** Makes the next collectives of this rank in `groups` fail: see StoreWorld.standBy(). */
export function standBy(world: CheckpointWorld, groups: () => readonly ProcessGroup[]): void {
  if (!(world instanceof StoreWorld)) return;
  world.standBy((text) => {
    for (const group of groups()) group.giveUp(text);
  });
}
