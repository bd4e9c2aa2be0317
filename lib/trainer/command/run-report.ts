// What `ds train` prints and records while it trains: lines, the address of the page, samples.

import type { Engine } from '../../engine/engine.js';
import { MODEL } from '../../engine/ranks.js';
import type { RunWatch } from '../../engine/watch/run-watch.js';
import type { CausalLM } from '../../models/index.js';
import { errorMessage } from '../../runtime/system-error.js';
import type { Tokenizer } from '../../text/index.js';
import type { TrainerEvent } from '../events.js';
import { continueText, type Prompt } from './sample.js';

/** What the samples of a run are generated from. */
export interface SampleSource {
  model: CausalLM;
  tokenizer: Tokenizer;
  prompt: Prompt;
  tokens: number;
}

/** Prints on the first rank. Lines before begin() are recorded by begin(). */
export class RunReport {
  private held: string[] | null = [];
  private watch: RunWatch | null = null;
  private sampledAt = -1;

  constructor(private readonly isFirst: boolean) {}

  /** Prints and records a line. */
  readonly say = (line: string): void => {
    if (!this.isFirst) return;
    console.log(line);
    this.record(line);
  };

  /** Records a line without printing it. */
  record(line: string): void {
    if (this.held) this.held.push(line);
    else this.watch?.log(line);
  }

  /** The recording has begun. The address contains a token, so only the terminal shows it. */
  begin(watch: RunWatch | null): void {
    this.watch = watch;
    if (watch?.url) console.log(`watch this run at ${watch.url}`);
    for (const line of this.held ?? []) watch?.log(line);
    this.held = null;
  }

  /**
   * Records a sample after an evaluation, a checkpoint and the last update. Without a page, and for
   * a model that is split over ranks, it records none. A failure is a notice, and training goes on.
   */
  sample(event: TrainerEvent, engine: Engine, source: SampleSource | null): void {
    const isDue = event.type === 'evaluate' || event.type === 'save' || event.type === 'end';
    if (!isDue || !source || !this.watch?.url || this.sampledAt === event.step) return;
    if (!isWhole(engine)) return;
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

/** Returns whether this rank can run the model without the others. */
function isWhole({ mesh, config }: Engine): boolean {
  return mesh.size(...MODEL) === 1 && config.zero_optimization.stage < 3;
}
