// An engine that says given texts: for tests of calls, reasoning and conversations.
import { setImmediate as turn } from 'node:timers/promises';
import { TextStream } from '../../lib/inference/text-stream.js';
import type { ContinuationRequest, ServedPiece } from '../../lib/serve/index.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

/** A template in the manner of Qwen 3: tools, calls, results, and reasoning after the last user. */
export const HERMES = `{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %} {{ messages[0].content }}{% endif %}
Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}
Call as <tool_call>{"name": .., "arguments": ..}</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}{% if m.role != 'system' or not loop.first %}
{%- if m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}`;

/** Says the next of `answers`, or what `reply` makes of the prompt. */
export class ScriptedEngine extends FakeEngine {
  readonly answers: string[] = [];
  reply: (prompt: string) => string = () => 'Hello';

  constructor(maxTokens = 4096) {
    super(tokenizer, maxTokens);
  }

  /** The text of the last prompt. */
  get lastPrompt(): string {
    return tokenizer.decode(this.requests.at(-1)?.prompt ?? []);
  }

  override async *stream(request: ContinuationRequest): AsyncGenerator<ServedPiece> {
    const { prompt, maxNewTokens = 4096, n = 1, signal, visibleTokens = [], stop = [] } = request;
    this.requests.push(request);
    this.active++;
    request.onStart?.();
    try {
      const text = this.answers.shift() ?? this.reply(tokenizer.decode(prompt));
      const tokens = [...tokenizer.encode(text, { addSpecialTokens: false })];
      const stops = typeof stop === 'string' ? [stop] : stop;
      for (let index = 0; index < n; ++index) {
        const decode = new TextStream(tokenizer, stops, [], visibleTokens);
        const common = { index, cachedTokens: 0 };
        const logprobs = (token: number) =>
          request.logprobs === undefined ? {} : { logprobs: [{ token, logprob: -1, top: [] }] };
        let reason: 'stop' | 'length' | null = null;
        for (const [i, token] of tokens.entries()) {
          await turn();
          if (signal?.aborted) return;
          if (this.failAt?.place === i) throw this.failAt.error;
          const decoded = decode.push(token);
          if (decoded.stop) reason = 'stop';
          else if (i + 1 === maxNewTokens) reason = 'length';
          const rest = reason === 'length' ? decode.end().text : '';
          const piece = { ...common, ...logprobs(token), tokens: [token] };
          const ended = decoded.stop ? { stopString: decoded.stop } : {};
          yield { ...piece, ...ended, text: decoded.text + rest, finishReason: reason };
          if (reason) break;
        }
        if (reason) continue;
        const end = tokenizer.eosId ?? 0;
        const last = { ...common, ...logprobs(end), tokens: [end] };
        yield { ...last, text: decode.end().text, finishReason: 'stop' };
      }
    } finally {
      this.active--;
      if (signal?.aborted) this.aborted++;
    }
  }
}
