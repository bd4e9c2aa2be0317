// The format of gpt-oss: messages with a channel and, for a call, a recipient.
//
//   <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>commentary
//   to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
import { beginCall, type CallContext } from './json-call.js';
import type { Parser } from './text-input.js';

const MESSAGE = '<|message|>';
const START = '<|start|>';
const CHANNEL = '<|channel|>';
const ENDS = ['<|end|>', '<|call|>', '<|return|>'];
export const HARMONY = [MESSAGE, START, CHANNEL, '<|constrain|>', ...ENDS];
/** Maximum characters of a header. */
const MAX_HEADER = 512;

/** Returns the header that the prompt has started: the text after its last <|start|>. */
export function findHeader(prompt: string): string {
  const at = prompt.lastIndexOf(START);
  return at < 0 ? '' : prompt.slice(at);
}

/** Parses reasoning, content and calls of an answer. */
export function* readHarmonyAnswer(context: CallContext): Parser {
  const { input } = context;
  for (;;) {
    yield* input.skipSpaces();
    if ((yield* input.peek()) === '') return;
    const isHeader = (yield* input.startsWith(START)) || (yield* input.startsWith(CHANNEL));
    if (isHeader) {
      // A header without a message is dropped.
      const header = yield* input.readUpTo([MESSAGE], MAX_HEADER);
      if (header !== null) {
        yield* input.skip(MESSAGE);
        yield* readMessage(context, header);
        continue;
      }
      if (!(yield* input.skip(START))) yield* input.skip(CHANNEL);
    }
    yield* readMessage(context, '');
  }
}

function* readMessage(context: CallContext, header: string): Parser {
  const { input, output } = context;
  const [, channel = 'final'] = /<\|channel\|>\s*(\w+)/.exec(header) ?? [];
  const [, name] = /\bto=functions\.([^\s<]+)/.exec(header) ?? [];
  const isThought = channel === 'analysis';
  if (name !== undefined) beginCall(context, name);
  let isSilent = true;
  const pass = (text: string): void => {
    isSilent &&= text.trim() === '';
    if (name !== undefined) output.addArguments(text);
    else if (isThought) output.addReasoning(text);
    else output.addContent(text);
  };
  const end = yield* input.passUntil([...ENDS, START, CHANNEL], pass);
  if (name !== undefined && isSilent && end !== null) output.addArguments('{}');
  if (name !== undefined && end !== null) output.endCall();
  if (end !== null && ENDS.includes(end)) yield* input.skip(end);
}
