// Which message a chat template drops, and how often the template runs to find it.

import { ResponseStore } from '../../lib/serve/responses/response-store.js';
import type { ChatMessage } from '../../lib/text/index.js';
import { findLostMessage } from '../../lib/text/lost-messages.js';

const messagesOf = (...parts: [string, string][]): ChatMessage[] =>
  parts.map(([role, content]) => ({ role, content }) as ChatMessage);

/** A template that writes messages of some roles, and counts its renders. */
function template(roles: readonly string[], written = (text: string): string => text) {
  const calls = { count: 0 };
  const render = (messages: readonly ChatMessage[]): string => {
    calls.count++;
    const known = messages.filter(({ role }) => roles.includes(role));
    return known.map(({ role, content }) => `${role}: ${written(String(content))}\n`).join('');
  };
  const countLost = (messages: ChatMessage[]): { lost: number; renders: number } => {
    const text = render(messages);
    calls.count = 0;
    return { lost: findLostMessage(messages, text, render), renders: calls.count };
  };
  return countLost;
}

test('a text with all messages is not rendered again', () => {
  const lost = template(['system', 'user', 'assistant']);
  const messages = messagesOf(['system', 'Be kind.'], ['user', 'Hi'], ['assistant', 'Hello']);
  expect(lost(messages)).toEqual({ lost: -1, renders: 0 });
});

test('messages of other roles are looked for in one render if the template writes them', () => {
  const lost = template(['user', 'tool', 'developer']);
  const messages = messagesOf(
    ['developer', 'One'],
    ['user', 'Two'],
    ['tool', 'Three'],
    ['tool', 'Four'],
  );
  expect(lost(messages)).toEqual({ lost: -1, renders: 1 });
});

test('a shortened message is not lost, a dropped one is', () => {
  const short = template(['user', 'tool'], (text) => text.slice(0, 2));
  expect(short(messagesOf(['user', 'A longer text']))).toMatchObject({ lost: -1 });
  expect(short(messagesOf(['user', 'Hi'], ['critic', 'No']))).toMatchObject({ lost: 1 });
});

test('the oldest turns may be dropped, but no instruction and no single turn', () => {
  const lastOnly = (roles: readonly string[]) => (messages: ChatMessage[]) => {
    const render = (chat: readonly ChatMessage[]): string =>
      chat
        .filter(({ role }, i) => i === chat.length - 1 || roles.includes(role))
        .map(({ content }) => String(content))
        .join('\n');
    return findLostMessage(messages, render(messages), render);
  };
  const turns = messagesOf(['user', 'One'], ['assistant', 'Two'], ['user', 'One']);
  expect(lastOnly([])(turns)).toBe(-1);
  expect(lastOnly(['user'])(turns)).toBe(1);
  expect(lastOnly([])(messagesOf(['system', 'Be kind.'], ['user', 'Hi']))).toBe(0);
  const late = messagesOf(['user', 'One'], ['system', 'Be kind.'], ['user', 'Two']);
  expect(lastOnly([])(late)).toBe(1);
});

test('a dropped message is found beside others that the template writes', () => {
  const lost = template(['user', 'tool']);
  const messages = messagesOf(
    ['user', 'Hi'],
    ['tool', 'Three'],
    ['critic', 'No'],
    ['judge', 'Yes'],
  );
  expect(lost(messages)).toMatchObject({ lost: 2 });
});

test('the error of an unknown response shows at most sixty characters of its id', () => {
  const store = new ResponseStore();
  const named = /got "x{60}"\. Send/;
  expect(() => store.find('x'.repeat(61), 'a')).toThrow(named);
  expect(() => store.find('x'.repeat(60), 'a')).toThrow(named);
});
