// Random siblings of valid requests: bodies with a wrong value or damaged JSON, and odd HTTP.
export type Draw = () => number;

/** A request as its bytes, and how its client behaves. */
export interface Sibling {
  /** For reports. */
  what: string;
  path: string;
  bytes: Buffer;
  /** Requests in `bytes`. */
  count: number;
  client: 'patient' | 'gone early' | 'gone late' | 'slow writer' | 'slow reader' | 'half closed';
}

type Json = unknown;
type Body = Record<string, Json>;

const HELLO = [{ role: 'user', content: 'Hello' }];
const sampling = { temperature: 0.5, top_p: 0.9, top_k: 5, min_p: 0.1, seed: 3, n: 2 };
const penalties = { presence_penalty: 1, frequency_penalty: 1, repetition_penalty: 1.1 };
const ends = { stop: ['a', 'b'], stop_token_ids: [5], min_tokens: 1, ignore_eos: true };

/** Valid bodies by path. */
const VALID: readonly (readonly [path: string, body: Body])[] = [
  ['/v1/completions', { prompt: 'Hello', max_tokens: 4, model: 'tiny' }],
  ['/v1/completions', { prompt: [1, 2, 3], max_tokens: 3, ...sampling, logprobs: 2 }],
  ['/v1/completions', { prompt: ['a', 'b'], max_tokens: 3, ...penalties, ...ends, echo: true }],
  ['/v1/completions', { prompt: [[5], [6, 7]], max_tokens: 6, stream: true, cache_salt: 'a' }],
  ['/v1/completions', { prompt: 'x', max_tokens: 2, logit_bias: { 5: 3 }, return_token_ids: true }],
  ['/v1/chat/completions', { messages: HELLO, max_tokens: 3, ...sampling, ...penalties }],
  [
    '/v1/chat/completions',
    {
      messages: [{ role: 'system', content: 'S' }, ...HELLO],
      max_completion_tokens: 5,
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      top_logprobs: 2,
    },
  ],
  [
    '/v1/chat/completions',
    {
      messages: [{ role: 'user', content: [{ type: 'text', text: 'Hi' }], name: 'me' }],
      max_tokens: 2,
      chat_template_kwargs: { a: { b: [1] } },
      tool_choice: 'none',
      response_format: { type: 'text' },
      user: 'u',
      metadata: { a: 'b' },
    },
  ],
  ['/tokenize', { prompt: 'Hello there', add_special_tokens: true, return_token_strs: true }],
  ['/tokenize', { messages: HELLO, add_generation_prompt: true }],
  ['/detokenize', { tokens: [5, 6, 7] }],
];

const OTHER_PATHS = ['/v1/models', '/v1/models/tiny', '/health', '/metrics', '/v1/%zz', '/', '*'];
const METHODS = ['GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH', 'TRACE', 'BREW'];

const nestJson = (depth: number): Json => {
  let value: Json = 1;
  for (let i = 0; i < depth; ++i) value = i % 2 === 0 ? [value] : { a: value };
  return value;
};

/** Values that a field may not expect. */
const WILD: readonly (() => Json)[] = [
  () => null,
  () => true,
  () => -1,
  () => 0,
  () => 0.5,
  () => 1e308,
  () => 5e-324,
  () => 2 ** 53,
  () => -(2 ** 63),
  () => 4e9,
  () => '',
  () => '1',
  () => 'NaN',
  () => '\ud800',
  () => '\u0000\u0007',
  () => '__proto__',
  () => 'é😀'.repeat(50),
  () => 'a'.repeat(3000),
  () => ' '.repeat(20_000),
  () => [],
  () => [null],
  () => [[], [[]]],
  () => Array(5000).fill(1),
  () => Array(70).fill('a'),
  () => Array(30).fill({ role: 'user', content: 'a' }),
  () => ({}),
  () => ({ constructor: 1, toString: 2, length: 3 }),
  () => JSON.parse('{"__proto__": {"a": 1}}'),
  () => ({ type: 'text', text: 1 }),
  () => ({ role: 'tool', content: null, tool_calls: [1] }),
  () => nestJson(20),
  () => nestJson(500),
];

const FIELDS = [...new Set(VALID.flatMap(([, body]) => Object.keys(body)))];
FIELDS.push('tools', 'functions', 'suffix', 'best_of', '__proto__', 'constructor', 'temprature');

/** Draws siblings; the same draws give the same siblings. */
export class Siblings {
  constructor(
    private readonly draw: Draw,
    private readonly key: string,
  ) {}

  next(): Sibling {
    const [path, valid] = this.one(VALID);
    const what: string[] = [];
    const body = this.changeBody(structuredClone(valid), what);
    const payload = this.damageText(JSON.stringify(body), what);
    const count = this.chance(0.1) ? 2 + this.below(4) : 1;
    if (count > 1) what.push(`${count} at once`);
    const parts = Array.from({ length: count }, (_, i) =>
      i > 0 && this.chance(0.5) ? this.other(what) : this.framePayload(path, payload, what),
    );
    const client = this.client();
    what.push(client);
    return { what: what.join(', '), path, bytes: Buffer.concat(parts), count, client };
  }

  private below(limit: number): number {
    return Math.floor(this.draw() * limit);
  }

  private chance(share: number): boolean {
    return this.draw() < share;
  }

  private one<Value>(values: readonly Value[]): Value {
    return values[this.below(values.length)] as Value;
  }

  private wild(): Json {
    return this.one(WILD)();
  }

  private changeBody(body: Body, what: string[]): Json {
    if (this.chance(0.15)) return body;
    if (this.chance(0.03)) return this.wild();
    for (let i = 1 + this.below(3); i > 0; --i) {
      const name = this.chance(0.7) ? this.one(Object.keys(body)) : this.one(FIELDS);
      what.push(name ?? 'nothing');
      if (this.chance(0.1)) delete body[name];
      else if (this.chance(0.3)) this.changeInside(body[name]);
      else Object.defineProperty(body, name, { value: this.wild(), ...PLAIN });
    }
    return body;
  }

  /** Replaces a value somewhere inside of a list or an object. */
  private changeInside(value: Json): void {
    if (typeof value !== 'object' || value === null) return;
    const inner = value as Body;
    const name = this.one([...Object.keys(inner), 'more']);
    if (this.chance(0.5)) this.changeInside(inner[name]);
    else if (!(Array.isArray(value) && name === 'more')) inner[name] = this.wild();
  }

  private damageText(text: string, what: string[]): Buffer {
    const fullBytes = Buffer.from(text);
    if (this.chance(0.75)) return fullBytes;
    const at = this.below(fullBytes.length);
    const ways: readonly (readonly [string, () => Buffer])[] = [
      ['cut', () => fullBytes.subarray(0, at)],
      [
        'a byte',
        () =>
          Buffer.concat([
            fullBytes.subarray(0, at),
            Buffer.of(this.below(256)),
            fullBytes.subarray(at),
          ]),
      ],
      ['invalid UTF-8', () => Buffer.concat([fullBytes, Buffer.of(0xc3)])],
      ['a BOM', () => Buffer.concat([Buffer.of(0xef, 0xbb, 0xbf), fullBytes])],
      ['more behind', () => Buffer.concat([fullBytes, fullBytes])],
      ['deep lists', () => Buffer.from('['.repeat(20_000))],
      ['deep objects', () => Buffer.from(`{"prompt":${'{"a":'.repeat(5000)}1${'}'.repeat(5001)}`)],
      ['a huge number', () => Buffer.from(text.replace(/\d+/, '1e999'))],
      ['many digits', () => Buffer.from(text.replace(/\d+/, '9'.repeat(400)))],
      ['a field twice', () => Buffer.from(`{"max_tokens":1,${text.slice(1)}`)],
      ['nothing', () => Buffer.alloc(0)],
      ['zeros', () => Buffer.alloc(100)],
      ['beyond the limit', () => Buffer.alloc(300_000, 32)],
    ];
    const [name, make] = this.one(ways);
    what.push(name);
    return make();
  }

  /** A request with the payload as its body. */
  private framePayload(path: string, payload: Buffer, what: string[]): Buffer {
    const headers = this.chance(0.02) ? [] : ['host: localhost'];
    const authorization = `authorization: Bearer ${this.chance(0.05) ? 'wrong' : this.key}`;
    if (!this.chance(0.03)) headers.push(authorization);
    headers.push(`content-type: ${this.chance(0.04) ? 'text/plain' : 'application/json'}`);
    if (this.chance(0.2)) this.oddHeader(headers, what);
    const method = this.chance(0.03) ? this.one(METHODS) : 'POST';
    const version = this.chance(0.02) ? '1.0' : '1.1';
    const start = `${method} ${path} HTTP/${version}`;
    what.push(start, ...headers.filter((line) => /wrong|plain/.test(line)));
    if (this.chance(0.25)) {
      what.push('chunked');
      headers.push('transfer-encoding: chunked');
      return Buffer.concat([headOf(start, headers), this.chunkPayload(payload, what)]);
    }
    const isWrong = this.chance(0.06);
    if (isWrong) what.push('wrong length');
    const length = isWrong ? this.one([payload.length + 9, 0, 1e12, 2 ** 40]) : payload.length;
    headers.push(`content-length: ${length}`);
    return Buffer.concat([headOf(start, headers), payload]);
  }

  private oddHeader(headers: string[], what: string[]): void {
    const ways = [
      'content-length: 5',
      'content-length: x',
      'transfer-encoding: gzip, chunked',
      'host: other.example',
      'expect: 100-continue',
      'expect: nothing',
      'content-encoding: gzip',
      'content-type: application/json; charset=latin1',
      'connection: upgrade\r\nupgrade: websocket',
      'connection: close',
      `x-long: ${'a'.repeat(20_000)}`,
      'x-odd: \u0001',
      ' folded: yes',
      'origin: https://other.example',
      'authorization: Basic eA==',
      'range: bytes=0-1',
    ];
    const header = this.one(ways);
    what.push(header.slice(0, 40));
    headers.push(header);
  }

  private chunkPayload(payload: Buffer, what: string[]): Buffer {
    const parts: Buffer[] = [];
    const odd = this.chance(0.15)
      ? this.one(['zz\r\n', 'ffffffffffffffff\r\n', '-5\r\n', '5'])
      : null;
    if (odd !== null) what.push(`chunk ${JSON.stringify(odd)}`);
    for (let at = 0; at < payload.length; ) {
      const size = 1 + this.below(Math.max(16, payload.length / 4));
      const chunk = payload.subarray(at, at + size);
      parts.push(Buffer.from(`${chunk.length.toString(16)}\r\n`), chunk, Buffer.from('\r\n'));
      at += size;
    }
    return Buffer.concat([...parts, Buffer.from(odd ?? '0\r\n\r\n')]);
  }

  private other(what: string[]): Buffer {
    const path = this.one(OTHER_PATHS);
    what.push(path);
    const method = this.chance(0.1) ? this.one(METHODS) : 'GET';
    return headOf(`${method} ${path} HTTP/1.1`, [
      'host: localhost',
      `authorization: Bearer ${this.key}`,
    ]);
  }

  private client(): Sibling['client'] {
    if (this.chance(0.7)) return 'patient';
    return this.one(['gone early', 'gone late', 'slow writer', 'slow reader', 'half closed']);
  }
}

const PLAIN = { enumerable: true, configurable: true, writable: true };

const headOf = (start: string, headers: readonly string[]): Buffer =>
  Buffer.from(`${[start, ...headers].join('\r\n')}\r\n\r\n`, 'latin1');
