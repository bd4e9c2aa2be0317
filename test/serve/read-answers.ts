// Reads the HTTP answers of a connection, and checks the shape of each.
export interface RawAnswer {
  status: number;
  headers: ReadonlyMap<string, string>;
  body: string;
}

/** The documented statuses. 100 stands for "100 Continue". */
const STATUSES = new Set([
  100, 200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 417, 429, 431, 503,
]);

/** The whole answers in the bytes of a connection that may be over; `rest` is an incomplete one. */
export function answersIn(bytes: Buffer, isOver = true): { answers: RawAnswer[]; rest: Buffer } {
  const answers: RawAnswer[] = [];
  let rest = bytes;
  for (;;) {
    const found = firstAnswer(rest, isOver);
    if (!found) return { answers, rest };
    answers.push(found.answer);
    rest = found.rest;
  }
}

function firstAnswer(bytes: Buffer, isOver: boolean): { answer: RawAnswer; rest: Buffer } | null {
  const end = bytes.indexOf('\r\n\r\n');
  if (end < 0) return null;
  const [start = '', ...lines] = bytes.subarray(0, end).toString('latin1').split('\r\n');
  const [, code = ''] = /^HTTP\/1\.1 (\d{3}) /.exec(start) ?? [];
  if (code === '') throw new Error(`no status line: ${JSON.stringify(start.slice(0, 80))}`);
  const headers = new Map(
    lines.map((line) => {
      const at = line.indexOf(':');
      return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()] as const;
    }),
  );
  const status = Number(code);
  const behind = bytes.subarray(end + 4);
  const answer = (body: string, used: number) => ({
    answer: { status, headers, body },
    rest: behind.subarray(used),
  });
  if (status === 100 || status === 204) return answer('', 0);
  if (headers.get('transfer-encoding') === 'chunked') {
    const found = unchunk(behind);
    return found && answer(found.body, found.used);
  }
  const isUntilClose = !headers.has('content-length') && headers.get('connection') === 'close';
  if (isUntilClose) return isOver ? answer(behind.toString(), behind.length) : null;
  const length = Number(headers.get('content-length') ?? 0);
  if (behind.length < length) return null;
  return answer(behind.subarray(0, length).toString(), length);
}

function unchunk(bytes: Buffer): { body: string; used: number } | null {
  const parts: Buffer[] = [];
  let at = 0;
  for (;;) {
    const end = bytes.indexOf('\r\n', at);
    if (end < 0) return null;
    const size = Number.parseInt(bytes.subarray(at, end).toString(), 16);
    if (bytes.length < end + 2 + size + 2) return null;
    at = end + 2 + size + 2;
    if (size === 0) return { body: Buffer.concat(parts).toString(), used: at };
    parts.push(bytes.subarray(end + 2, end + 2 + size));
  }
}

/** The fault of an answer; null if its status is documented and its shape is right. */
export function faultOf({ status, headers, body }: RawAnswer): string | null {
  if (!STATUSES.has(status)) return `status ${status}: ${body.slice(0, 200)}`;
  if (status === 100 || status === 204) return null;
  if (status === 200) return faultOfSuccess(headers.get('content-type') ?? '', body);
  const isOdd = faultOfError(parseJson(body));
  return isOdd ? `status ${status} with ${JSON.stringify(body.slice(0, 200))}` : null;
}

// biome-ignore lint/suspicious/noExplicitAny: it looks at any JSON.
function parseJson(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// biome-ignore lint/suspicious/noExplicitAny: it looks at any JSON.
function faultOfError(json: any): boolean {
  if (json?.status === 'loading' || json?.status === 'stopping') return false;
  const { message, type, param, code } = json?.error ?? {};
  const isText = (item: unknown): boolean => typeof item === 'string' && item !== '';
  const isNone = (item: unknown): boolean => item === null || isText(item);
  return !(isText(message) && isText(type) && isNone(param) && isNone(code));
}

function faultOfSuccess(type: string, body: string): string | null {
  if (body === '') return null; // The answer to HEAD.
  if (type.startsWith('text/event-stream')) return faultOfStream(body);
  if (type.startsWith('text/plain')) return /^# HELP /.test(body) ? null : 'no metrics';
  const json = parseJson(body);
  if (json === undefined) return `no JSON: ${body.slice(0, 200)}`;
  if (json.status === 'ok' || json.object === 'list' || json.object === 'model') return null;
  if (Array.isArray(json.tokens) && json.count === json.tokens.length) return null;
  if (typeof json.prompt === 'string') return null;
  return isCompletion(json) ? null : `an odd answer: ${body.slice(0, 200)}`;
}

// biome-ignore lint/suspicious/noExplicitAny: it looks at any JSON.
function isCompletion({ id, object, choices, usage }: any): boolean {
  const isKnown = object === 'text_completion' || object === 'chat.completion';
  const isGood = Array.isArray(choices) && choices.every(isWhole) && choices.length > 0;
  const { prompt_tokens: prompt, completion_tokens: made, total_tokens: all } = usage ?? {};
  return isKnown && typeof id === 'string' && isGood && prompt + made === all;
}

// biome-ignore lint/suspicious/noExplicitAny: it looks at any JSON.
function isWhole({ text, message, finish_reason: reason }: any): boolean {
  const content = text ?? message?.content;
  return typeof content === 'string' && (reason === 'stop' || reason === 'length');
}

function faultOfStream(body: string): string | null {
  const blocks = body.split('\n\n').filter((text) => text !== '' && !text.startsWith(':'));
  const last = blocks.at(-1)?.replace(/^data: /, '') ?? '';
  const events = blocks.slice(0, -1).map((block) => parseJson(block.replace(/^data: /, '')));
  const isGood = events.every((event) => Array.isArray(event?.choices));
  const isEnded = last === '[DONE]' || !faultOfError(parseJson(last));
  return isGood && isEnded ? null : `an odd stream: ${body.slice(-300)}`;
}
