// Requests to the server. The key stays in this tab: sessionStorage forgets it with the tab.
const KEY = 'ds-serve-key';

/** An answer with a status other than 2xx, or an error within a stream. */
export class ServerError extends Error {
  constructor(status, { message, code } = {}) {
    super(message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = code ?? null;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: (text) => sessionStorage.setItem(KEY, text),
};

/** Returns the answer to a request. Throws ServerError for an error answer. */
async function ask(path, { body, signal } = {}) {
  const own = key.get();
  const answer = await fetch(path, {
    method: body ? 'POST' : 'GET',
    headers: {
      ...(own && { authorization: `Bearer ${own}` }),
      ...(body && { 'content-type': 'application/json' }),
    },
    body: body && JSON.stringify(body),
    cache: 'no-store',
    signal,
  });
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  throw new ServerError(answer.status, found.error);
}

/** Returns the entries of /v1/models. */
export async function models() {
  return (await (await ask('/v1/models')).json()).data;
}

/** Yields the data of each event of a text in pieces. A comment has no data. */
async function* eventsOf(pieces) {
  let rest = '';
  for await (const piece of pieces) {
    const blocks = (rest + piece).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) if (block.startsWith('data: ')) yield block.slice(6);
  }
}

async function* piecesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/** Yields the chunks of an answer. Throws if the stream ends without [DONE]. */
export async function* chat(body, signal) {
  const { body: stream } = await ask('/v1/chat/completions', { body, signal });
  for await (const data of eventsOf(piecesOf(stream))) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(200, chunk.error);
    yield chunk;
  }
  throw new Error('The connection closed before the answer was complete.');
}
