// Reads an answer while it is generated: content, reasoning and calls.
import { isObject } from '../../runtime/is-object.js';
import { type AnswerEvent, AnswerOutput } from './answer-events.js';
import type { FunctionTool } from './call-schema.js';
import type { CallFamily } from './families.js';
import { headerIn } from './harmony.js';
import { isOpenIn, type ReasoningMarkers, readReasoning } from './reasoning.js';
import { type Reading, TextInput } from './text-input.js';

export type { FunctionTool } from './call-schema.js';

/** How an answer is read. */
export interface AnswerForm {
  /** Null: calls stay text. */
  family: CallFamily | null;
  /** Null: reasoning stays text. */
  reasoning: ReasoningMarkers | null;
  /** Functions of the request. */
  tools: readonly FunctionTool[];
  /** Default: no limit. */
  maxCalls?: number;
  /** Drop spaces between reasoning and text: the text has a format. Default: false. */
  isTrimmed?: boolean;
}

/** UTF-16 units that the parsers get at a time; more would make their searches slow. */
const PIECE = 4096;

/** Of one answer. The events do not depend on the pieces that the text arrives in. */
export class AnswerReader {
  private readonly output: AnswerOutput;
  /** The prompt ends inside of reasoning. */
  readonly startsThinking: boolean;
  private readonly stages: readonly { input: TextInput; reading: Reading }[];

  /** `promptEnd`: the end of the prompt, from its last special token that is no marker. */
  constructor(form: AnswerForm, promptEnd = '') {
    const { family, reasoning, tools, maxCalls, isTrimmed = false } = form;
    this.output = new AnswerOutput(maxCalls);
    const { output } = this;
    const input = new TextInput();
    const byName = new Map(tools.map((tool) => [tool.function.name, tool.function.parameters]));
    const calls = family?.read ?? plain;
    const ownReading = calls({
      input,
      output,
      isKnown: (name) => byName.has(name),
      schemaOf: (name, parameter) => propertyOf(byName.get(name), parameter),
    });
    const last = { input, reading: ownReading };
    const isOpen = reasoning !== null && isOpenIn(promptEnd, reasoning);
    this.startsThinking = isOpen;
    if (family?.isWhole) {
      this.stages = [last];
      this.read(headerIn(promptEnd));
      output.drain(); // The prompt is no part of the answer.
    } else if (reasoning) {
      const first = new TextInput();
      const start = { markers: reasoning, isOpen, isTrimmed };
      const pass = (text: string): void => input.push(text);
      this.stages = [{ input: first, reading: readReasoning(first, output, start, pass) }, last];
    } else this.stages = [last];
  }

  /** Calls that have begun. */
  get calls(): number {
    return this.output.calls;
  }

  /** The calls that the request permits are complete. */
  get isDone(): boolean {
    return this.output.isDone;
  }

  /** Takes the next text and returns the events that are certain. */
  push(text: string): AnswerEvent[] {
    this.read(text);
    return this.output.drain();
  }

  /** The answer is over. */
  end(): AnswerEvent[] {
    for (const { input, reading } of this.stages) {
      input.close();
      reading.next();
    }
    this.output.close();
    return this.output.drain();
  }

  private read(text: string): void {
    for (let at = 0; at < text.length; at += PIECE) {
      this.stages[0]?.input.push(text.slice(at, at + PIECE));
      for (const { reading } of this.stages) reading.next();
    }
  }
}

function* plain({ input, output }: { input: TextInput; output: AnswerOutput }): Reading {
  while (yield* input.some()) output.content(input.take(input.ready.length));
}

function propertyOf(schema: unknown, name: string): unknown {
  if (!isObject(schema) || !isObject(schema.properties)) return undefined;
  return Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined;
}
