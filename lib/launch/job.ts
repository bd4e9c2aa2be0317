// A job: the complete input of a node that starts its ranks. It is JSON and holds the secret.
import type { BindingRequest } from './core-binding.js';
import type { Node } from './hostfile.js';
import type { Script } from './script.js';

export interface Job {
  /** Nodes with their slots. Ranks are numbered in this order, one per slot. */
  nodes: readonly Node[];
  /** The kind of a slot: a GPU (a name for CUDA_VISIBLE_DEVICES) or a place on the CPU. */
  device: 'gpu' | 'cpu';
  masterAddr: string;
  masterPort: number;
  /** Admits to the job's store. */
  secret: string;
  script: Script;
  /** Working directory of the ranks, on every node. */
  directory: string;
  /** Variables in addition to the node's own environment. */
  environment: Readonly<Record<string, string>>;
  binding: BindingRequest;
  /** One log file per rank goes here, if anywhere. */
  logDirectory: string | null;
  /** Seconds between asking ranks to end and ending them. */
  grace: number;
  /** No notices. */
  quiet: boolean;
}
