// Conversations in localStorage: one entry for each, so that two tabs do not overwrite each other.
const PREFIX = 'ds-serve-talk:';
/** Numbers of a request, by their names in the API. */
export const SAMPLING = {
  temperature: { label: 'Temperature', min: 0, max: 2, step: 0.1 },
  top_p: { label: 'Top p', min: 0.01, max: 1, step: 0.01 },
  top_k: { label: 'Top k', min: -1, step: 1 },
  min_p: { label: 'Min p', min: 0, max: 1, step: 0.01 },
  repetition_penalty: { label: 'Repetition penalty', min: 0.01, step: 0.05 },
  max_tokens: { label: 'Max tokens', min: 1, step: 1 },
  seed: { label: 'Seed', min: 0, step: 1 },
};
const TITLE = 60;

/** Returns a new conversation with the settings of another one. */
export function newTalk(settings = {}) {
  return { id: crypto.randomUUID(), time: Date.now(), messages: [], settings: { ...settings } };
}

/** Returns the conversations, the latest first. Skips entries that this page did not write. */
export function readTalks() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const read = names.map((name) => {
    try {
      return JSON.parse(localStorage.getItem(name));
    } catch {
      return null;
    }
  });
  return read.filter(isTalk).sort((a, b) => b.time - a.time);
}

function isTalk(one) {
  if (typeof one?.id !== 'string' || !Array.isArray(one.messages)) return false;
  return typeof one.settings === 'object' && one.settings !== null;
}

/** Throws QuotaExceededError if the browser gives this page no more room. */
export function saveTalk(talk) {
  talk.time = Date.now();
  localStorage.setItem(PREFIX + talk.id, JSON.stringify(talk));
}

export const removeTalk = ({ id }) => localStorage.removeItem(PREFIX + id);

export function titleOf({ messages }) {
  const first = messages.find(({ role }) => role === 'user')?.content ?? '';
  return first.trim().replaceAll(/\s+/g, ' ').slice(0, TITLE) || 'New conversation';
}

/** Returns the JSON of a text; undefined for an empty one. Throws SyntaxError. */
export const jsonOf = (text = '') => (text.trim() === '' ? undefined : JSON.parse(text));

/** A message as the API takes it; the page keeps more fields. */
function sentMessage({ role, content, tool_calls, tool_call_id, reasoning_content }) {
  const message = { role, content, tool_calls, tool_call_id, reasoning_content };
  return Object.fromEntries(Object.entries(message).filter(([, value]) => value));
}

/** Returns the body of a request. Throws SyntaxError for tools or a schema that are not JSON. */
export function bodyOf({ messages, settings }, model) {
  const { system, tools, schema } = settings;
  const first = system?.trim() ? [{ role: 'system', content: system }] : [];
  const numbers = Object.keys(SAMPLING).flatMap((name) =>
    Number.isFinite(settings[name]) ? [[name, settings[name]]] : [],
  );
  const [functions, format] = [jsonOf(tools), jsonOf(schema)];
  return {
    model,
    messages: [...first, ...messages.map(sentMessage)],
    stream: true,
    stream_options: { include_usage: true },
    return_token_ids: true,
    ...Object.fromEntries(numbers),
    ...(functions && { tools: functions }),
    ...(format && {
      response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: format } },
    }),
  };
}
