// RunReport: prints and records the progress of `ds train`, that is, lines and samples.

import type { Engine } from '../../engine/engine.js';
import { MODEL } from '../../engine/ranks.js';
import type { RunWatch } from '../../engine/watch/run-watch.js';
import type { CausalLM } from '../../models/index.js';
import { errorMessage } from '../../runtime/system-error.js';
import type { Tokenizer } from '../../text/index.js';
import type { TrainerEvent } from '../events.js';
import { continueText, type Prompt } from './sample.js';

/** The model, the tokenizer and the prompt for the samples of a run. */
export interface SampleSource {
  model: CausalLM;
  tokenizer: Tokenizer;
  prompt: Prompt;
  tokens: number;
}

/** Prints lines on rank 0. Lines before begin() are recorded at begin(). */
export class RunReport {
  private earlyLines: string[] | null = [];
  private watch: RunWatch | null = null;
  private sampledAt = -1;

  constructor(private readonly isFirst: boolean) {}

  /** Prints a line and records it. */
  readonly print = (line: string): void => {
    if (!this.isFirst) return;
    console.log(line);
    this.record(line);
  };

  /** Records a line without printing it. */
  record(line: string): void {
    if (this.earlyLines) this.earlyLines.push(line);
    else this.watch?.log(line);
  }

  /**
   * Starts recording. Prints the page's address only on the terminal, because it contains a token.
   */
  begin(watch: RunWatch | null): void {
    this.watch = watch;
    if (watch?.url) console.log(`watch this run at ${watch.url}`);
    for (const line of this.earlyLines ?? []) watch?.log(line);
    this.earlyLines = null;
  }

  /**
   * Records a sample after an evaluation, after a checkpoint and at the end. Records nothing
   * without a page, or if ranks divide the model. If sampling fails, records a notice.
   */
  sample(event: TrainerEvent, engine: Engine, source: SampleSource | null): void {
    const isDue = event.type === 'evaluate' || event.type === 'save' || event.type === 'end';
    if (!isDue || !source || !this.watch?.url || this.sampledAt === event.step) return;
    if (!hasWholeModel(engine)) return;
    this.sampledAt = event.step;
    engine.synchronize();
    const { model, tokenizer, prompt, tokens } = source;
    try {
      const text = continueText(model, tokenizer, prompt, tokens);
      this.watch.text({ prompt: prompt.text, text });
    } catch (error) {
      this.watch.notice(`The sample failed: ${errorMessage(error)}`, 'warning');
    }
  }
}

/** Returns whether this rank can run the model without other ranks. */
function hasWholeModel({ mesh, config }: Engine): boolean {
  return mesh.size(...MODEL) === 1 && config.zero_optimization.stage < 3;
}
