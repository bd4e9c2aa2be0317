// The format of gpt-oss: messages with a channel and, for a call, a recipient.
//
//   <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>commentary
//   to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
import { begin, type CallReading } from './json-call.js';
import type { Reading } from './text-input.js';

const MESSAGE = '<|message|>';
const START = '<|start|>';
const CHANNEL = '<|channel|>';
const ENDS = ['<|end|>', '<|call|>', '<|return|>'];
export const HARMONY = [MESSAGE, START, CHANNEL, '<|constrain|>', ...ENDS];
/** Characters of a header. */
const MAX_HEADER = 512;

/** The header that the prompt has begun: the text after its last <|start|>. */
export function headerIn(prompt: string): string {
  const at = prompt.lastIndexOf(START);
  return at < 0 ? '' : prompt.slice(at);
}

/** Reads reasoning, content and calls of a whole answer. */
export function* harmonyCalls(reading: CallReading): Reading {
  const { input } = reading;
  for (;;) {
    yield* input.spaces();
    if ((yield* input.peek()) === '') return;
    const isHeader = (yield* input.startsWith(START)) || (yield* input.startsWith(CHANNEL));
    if (isHeader) {
      // A header without a message is no text.
      const header = yield* input.upTo([MESSAGE], MAX_HEADER);
      if (header !== null) {
        yield* input.skip(MESSAGE);
        yield* readMessage(reading, header);
        continue;
      }
      if (!(yield* input.skip(START))) yield* input.skip(CHANNEL);
    }
    yield* readMessage(reading, '');
  }
}

function* readMessage(reading: CallReading, header: string): Reading {
  const { input, output } = reading;
  const [, channel = 'final'] = /<\|channel\|>\s*(\w+)/.exec(header) ?? [];
  const [, name] = /\bto=functions\.([^\s<]+)/.exec(header) ?? [];
  const isThought = channel === 'analysis';
  if (name !== undefined) begin(reading, name);
  let isSilent = true;
  const pass = (text: string): void => {
    isSilent &&= text.trim() === '';
    if (name !== undefined) output.arguments(text);
    else if (isThought) output.reasoning(text);
    else output.content(text);
  };
  const end = yield* input.until([...ENDS, START, CHANNEL], pass);
  if (name !== undefined && isSilent && end !== null) output.arguments('{}');
  if (name !== undefined && end !== null) output.end();
  if (end !== null && ENDS.includes(end)) yield* input.skip(end);
}
