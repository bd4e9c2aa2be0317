// Messages that a chat template leaves out as a whole: of roles that it does not know, as a rule.
import type { ChatMessage } from '../text/index.js';

/** Writes messages as the template does; throws where it takes no such messages. */
type Render = (messages: readonly ChatMessage[]) => string;

/** Templates write what these say. */
const USUAL: ReadonlySet<unknown> = new Set(['system', 'user', 'assistant']);

/** Private characters, which nobody's messages have. */
const markOf = (index: number): string => `\uF8F2${index}\uF8F3`;

/**
 * The first message that says something and of which `text`, the conversation as `render` writes
 * it, holds nothing; -1 where there is none. Templates change contents, trim them and cut thoughts
 * out of them: a message is lost where another content in its place would be written neither.
 */
export function lostMessage(
  messages: readonly ChatMessage[],
  text: string,
  render: Render,
): number {
  const doubtful = messages.flatMap(({ role, content }, i) => {
    const said = String(content ?? '').trim();
    return said === '' || (USUAL.has(role) && text.includes(said)) ? [] : [i];
  });
  if (doubtful.length === 0) return -1;
  const marked = (chosen: (index: number) => boolean): string | null => {
    try {
      return render(messages.map((one, i) => (chosen(i) ? { ...one, content: markOf(i) } : one)));
    } catch {
      return null; // It reads what they say.
    }
  };
  const all = marked(() => true);
  const unseen = doubtful.filter((i) => !all?.includes(markOf(i)));
  return unseen.find((i) => marked((one) => one === i) === text) ?? -1;
}
