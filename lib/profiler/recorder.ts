// Records which module runs each op of a model, and the device time of each module call.

import type { Module } from '../nn/index.js';
import { observeKernels } from '../runtime/call.js';
import type { Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event } from '../runtime/stream.js';
import { runningSequenceNumber } from '../tensor/backward.js';
import { isRecomputing, latestSequence } from '../tensor/tape.js';
import { countWork } from './flop-counts.js';
import { addWork, type ModuleNode, ModuleTree, type Pass } from './module-tree.js';

interface ModuleCall {
  node: ModuleNode;
  caller: ModuleNode | null;
  pass: 'forward' | 'recompute';
  start: Event;
  end: Event | null;
}

/** The innermost running module of the tape nodes after number `after`, until the next mark. */
interface TapeMark {
  after: number;
  node: ModuleNode;
}

/**
 * Adds the work of each op to a module. In a forward, this is the innermost running module. In a
 * backward, it is the module that recorded the tape node. Ops without a module belong to the root.
 *
 * Hooks and events exist only between attach() and detach().
 */
export class Recorder {
  readonly tree: ModuleTree;
  private readonly openCalls: ModuleCall[] = [];
  private readonly closedCalls: ModuleCall[] = [];
  private readonly marks: TapeMark[] = [];
  private removers: (() => void)[] = [];

  constructor(
    model: Module,
    private readonly device: Device,
  ) {
    this.tree = new ModuleTree(model);
  }

  /** Adds the hooks. Throws DS_ARGUMENT while another recorder is attached. */
  attach(): void {
    observeKernels((op, args) => this.count(op, args));
    this.removers.push(() => observeKernels(null));
    for (const module of this.tree.modules()) {
      const node = this.tree.nodeOf(module);
      this.removers.push(
        module.registerForwardPreHook(() => this.enter(node)),
        module.registerForwardHook(() => this.leave(node)),
        module.registerFailureHook(() => this.abandon(node)),
      );
    }
  }

  detach(): void {
    for (const remove of this.removers.splice(0)) remove();
    for (const call of this.openCalls.splice(0)) call.start.dispose();
  }

  /** Waits for the device, and adds the latencies of the finished calls to the tree. */
  addLatencies(): void {
    for (const { node, caller, pass, start, end } of this.closedCalls.splice(0)) {
      required(end).synchronize();
      const ms = required(end).since(start);
      start.dispose();
      required(end).dispose();
      if (pass === 'recompute') {
        node.recomputeMs += ms;
        continue;
      }
      node.calls++;
      node.latencyMs += ms;
      if (caller) caller.innerMs += ms;
    }
  }

  private enter(node: ModuleNode): void {
    const pass = runningSequenceNumber() === 0 ? 'forward' : 'recompute';
    const caller = this.openCalls.at(-1)?.node ?? null;
    this.openCalls.push({ node, caller, pass, start: this.recordEvent(), end: null });
    this.marks.push({ after: latestSequence(), node });
  }

  private leave(node: ModuleNode): void {
    const call = this.closeInnermost(node);
    if (!call) return;
    call.end = this.recordEvent();
    this.closedCalls.push(call);
  }

  /** Drops a call that ended with an exception. */
  private abandon(node: ModuleNode): void {
    this.closeInnermost(node)?.start.dispose();
  }

  /** Removes and returns the innermost call, or null if it is another module's. */
  private closeInnermost(node: ModuleNode): ModuleCall | null {
    const call = this.openCalls.at(-1);
    if (call?.node !== node) return null;
    this.openCalls.pop();
    this.marks.push({ after: latestSequence(), node: call.caller ?? this.tree.root });
    return call;
  }

  /** Finds the op's module at the call, and adds the op's work when it runs. */
  private count(op: number, args: object): (() => void) | null {
    const work = countWork(op, args);
    if (work.flops === 0) return null;
    const node = runningSequenceNumber();
    const caller = this.openCalls.at(-1)?.node;
    const pass: Pass = node === 0 ? 'forward' : isRecomputing() ? 'recompute' : 'backward';
    const { own } = caller ?? this.findRecordingModule(node);
    return () => addWork(own[pass], work);
  }

  /**
   * Returns the module that recorded tape node `node`, by bisection. Returns the root if the node
   * is older than the profile.
   */
  private findRecordingModule(node: number): ModuleNode {
    let [low, high] = [0, this.marks.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (required(this.marks[middle]).after < node) low = middle + 1;
      else high = middle;
    }
    return this.marks[low - 1]?.node ?? this.tree.root;
  }

  private recordEvent(): Event {
    return new Event(this.device, true).record(this.device.compute);
  }
}
