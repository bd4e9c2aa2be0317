// Detects messages that a chat template drops, mostly because of an unknown role.
import type { ChatMessage } from './chat-template.js';

/** Renders messages with the template. Throws if the template refuses them. */
type Render = (messages: readonly ChatMessage[]) => string;

/** Roles that every template renders. */
const KNOWN_ROLES: ReadonlySet<unknown> = new Set(['system', 'user', 'assistant']);

/**
 * Roles of a conversation's turns. A template may drop the oldest turns: it shortens the history.
 */
const TURNS: ReadonlySet<unknown> = new Set(['user', 'assistant']);

/** Returns a marker of private-use characters, which messages do not contain. */
const markFor = (index: number): string => `\uF8F2${index}\uF8F3`;

/**
 * Returns the index of the first non-empty message that `text` lacks; -1 if it lacks no message.
 * `render` wrote `text` from the messages. Templates trim and shorten contents, so the function
 * renders again with marks as contents. A message is lost if the template drops its mark as well.
 * If the template drops all of the oldest turns, as a limit on the length does, they are not lost.
 */
export function findLostMessage(
  messages: readonly ChatMessage[],
  text: string,
  render: Render,
): number {
  const doubtful = messages.flatMap(({ role, content }, i) => {
    const contentText = String(content ?? '').trim();
    return contentText === '' || (KNOWN_ROLES.has(role) && text.includes(contentText)) ? [] : [i];
  });
  if (doubtful.length === 0) return -1;
  const markChosen = (chosen: (index: number) => boolean): string | null => {
    try {
      return render(
        messages.map((message, i) => (chosen(i) ? { ...message, content: markFor(i) } : message)),
      );
    } catch {
      return null; // The template checks contents.
    }
  };
  const all = markChosen(() => true);
  const unseen = doubtful.filter((i) => !all?.includes(markFor(i)));
  const isTurn = (i: number): boolean => i < messages.length - 1 && TURNS.has(messages[i]?.role);
  const end = unseen.findLast(isTurn) ?? -1;
  const isOld = (i: number): boolean => i <= end && isTurn(i);
  const isShortened = end >= 0 && markChosen(isOld) === text;
  const doubted = isShortened ? unseen.filter((i) => !isOld(i)) : unseen;
  return doubted.find((i) => markChosen((value) => value === i) === text) ?? -1;
}
