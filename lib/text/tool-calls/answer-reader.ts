// Parses an answer while it is generated: content, reasoning and calls.
import { isObject } from '../../runtime/is-object.js';
import { type AnswerEvent, AnswerOutput } from './answer-events.js';
import type { FunctionTool } from './call-schema.js';
import type { CallFamily } from './families.js';
import { findHeader } from './harmony.js';
import { isOpenIn, type ReasoningMarkers, readReasoning } from './reasoning.js';
import { type Parser, TextInput } from './text-input.js';

export type { FunctionTool } from './call-schema.js';

/** How to parse an answer. */
export interface AnswerForm {
  /** Null: calls stay in the text. */
  family: CallFamily | null;
  /** Null: reasoning stays in the text. */
  reasoning: ReasoningMarkers | null;
  /** Functions of the request. */
  tools: readonly FunctionTool[];
  /** Default: no limit. */
  maxCalls?: number;
  /** Drops spaces between reasoning and text, because the text has a format. Default: false. */
  isTrimmed?: boolean;
}

/**
 * Maximum UTF-16 units that parsers get at a time; longer pieces would slow down their searches.
 */
const PIECE_LENGTH = 4096;

/** Parses one answer. The events do not depend on how the text is split into pieces. */
export class AnswerReader {
  private readonly output: AnswerOutput;
  /** Whether the prompt ends inside reasoning. */
  readonly startsThinking: boolean;
  private readonly stages: readonly { input: TextInput; parser: Parser }[];

  /** `promptEnd`: the end of the prompt after its last special token that is not a marker. */
  constructor(form: AnswerForm, promptEnd = '') {
    const { family, reasoning, tools, maxCalls, isTrimmed = false } = form;
    this.output = new AnswerOutput(maxCalls);
    const { output } = this;
    const input = new TextInput();
    const byName = new Map(tools.map((tool) => [tool.function.name, tool.function.parameters]));
    const calls = family?.read ?? readPlain;
    const callReading = calls({
      input,
      output,
      isKnown: (name) => byName.has(name),
      schemaOf: (name, parameter) => findProperty(byName.get(name), parameter),
    });
    const last = { input, parser: callReading };
    const isOpen = reasoning !== null && isOpenIn(promptEnd, reasoning);
    this.startsThinking = isOpen;
    if (family?.isWhole) {
      this.stages = [last];
      this.read(findHeader(promptEnd));
      output.drain(); // The prompt is not part of the answer.
    } else if (reasoning) {
      const first = new TextInput();
      const start = { markers: reasoning, isOpen, isTrimmed };
      const pass = (text: string): void => input.push(text);
      this.stages = [{ input: first, parser: readReasoning(first, output, start, pass) }, last];
    } else this.stages = [last];
  }

  /** Number of calls that have started. */
  get calls(): number {
    return this.output.calls;
  }

  /** Whether all calls that the request permits are complete. */
  get isDone(): boolean {
    return this.output.isDone;
  }

  /** Takes the next text and returns the events that are certain. */
  push(text: string): AnswerEvent[] {
    this.read(text);
    return this.output.drain();
  }

  /** Ends the answer and returns the last events. */
  end(): AnswerEvent[] {
    for (const { input, parser } of this.stages) {
      input.close();
      parser.next();
    }
    this.output.close();
    return this.output.drain();
  }

  private read(text: string): void {
    for (let at = 0; at < text.length; at += PIECE_LENGTH) {
      this.stages[0]?.input.push(text.slice(at, at + PIECE_LENGTH));
      for (const { parser } of this.stages) parser.next();
    }
  }
}

function* readPlain({ input, output }: { input: TextInput; output: AnswerOutput }): Parser {
  while (yield* input.waitForText()) output.addContent(input.take(input.ready.length));
}

function findProperty(schema: unknown, name: string): unknown {
  if (!isObject(schema) || !isObject(schema.properties)) return undefined;
  return Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined;
}
