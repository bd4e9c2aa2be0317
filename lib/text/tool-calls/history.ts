// Finds the form of tool calls that a chat template can render: templates differ in two details.
import { DsError } from '../../errors.js';
import { isObject } from '../../runtime/is-object.js';
import type { ChatMessage } from '../chat-template.js';

/** Renders messages with the template. Throws DS_DATA if the template refuses them. */
type Render = (messages: readonly ChatMessage[]) => string;

/**
 * `messages`: a form that the template renders. `lost`: no form works, and this is the index of the
 * message that loses its calls.
 */
type CallHistory = { messages: readonly ChatMessage[] } | { lost: number };

/** Returns a marker of private-use characters, which function names do not contain. */
const markFor = (index: number): string => `\uF8F4${index}\uF8F5`;

/**
 * Returns the first form in which the template renders all calls. Most templates read arguments as
 * an object, some as JSON text. Some render calls only if the content is null. If the template
 * refuses all forms, throws its error for the usual form.
 */
export function renderableHistory(messages: readonly ChatMessage[], render: Render): CallHistory {
  // The template itself refuses messages that are no objects.
  if (!messages.every((message) => isObject(message)) || !messages.some(hasCalls))
    return { messages };
  let refusal: unknown = null;
  let lost = -1;
  for (const isNull of [false, true]) {
    for (const isText of [false, true]) {
      const form = messages.map((message) =>
        hasCalls(message) ? convertMessage(message, isNull, isText) : message,
      );
      try {
        const text = render(
          form.map((message, i) =>
            hasCalls(message) ? renameCalls(message, markFor(i)) : message,
          ),
        );
        const dropped = form.findIndex(
          (message, i) => hasCalls(message) && !text.includes(markFor(i)),
        );
        if (dropped < 0) return { messages: form };
        if (lost < 0) lost = dropped;
      } catch (error) {
        if (!(error instanceof DsError)) throw error;
        refusal ??= error;
      }
    }
  }
  if (lost < 0) throw refusal;
  return { lost };
}

function hasCalls({ tool_calls: calls }: ChatMessage): boolean {
  return Array.isArray(calls) && calls.length > 0;
}

interface Call {
  function: { name: string; arguments: unknown };
}

const callsOf = (message: ChatMessage): Call[] => message.tool_calls as Call[];

function convertMessage(message: ChatMessage, isNull: boolean, isText: boolean): ChatMessage {
  const calls = callsOf(message).map((call) => {
    const { arguments: given } = call.function;
    const args = isText && isObject(given) ? JSON.stringify(given) : given;
    return { ...call, function: { ...call.function, arguments: args } };
  });
  const { content } = message;
  const isEmpty = content === '' || content === null || content === undefined;
  return { ...message, content: isEmpty ? (isNull ? null : '') : content, tool_calls: calls };
}

const renameCalls = (message: ChatMessage, name: string): ChatMessage => ({
  ...message,
  tool_calls: callsOf(message).map((call) => ({ ...call, function: { ...call.function, name } })),
});
