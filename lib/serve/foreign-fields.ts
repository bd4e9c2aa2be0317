// Advice for parameters of other servers: the fields or options that replace them.

const kwargs = (name: string): string =>
  `Send "chat_template_kwargs": { "${name}": ... }, if the chat template reads it.`;
const instead = (field: string): string => `Send "${field}" instead.`;
const constraint = (kind: string): string =>
  `Send "structured_outputs": { "${kind}": ... } instead.`;
const remove = 'Remove it.';
const samplers = 'Remove it: the samplers are temperature, top_k, top_p, min_p and the penalties.';
const structured = 'Send "response_format" with a "json_schema" instead.';
const unloading = 'Remove it: start the server with --model-idle SECONDS.';
const context = 'Remove it: start the server with --context N.';

/** Advice by parameter. */
const ADVICE: Readonly<Record<string, string>> = {
  // vLLM until 0.11.
  guided_json: constraint('json'),
  guided_regex: constraint('regex'),
  guided_choice: constraint('choice'),
  guided_grammar: constraint('grammar'),
  guided_decoding_backend: remove,
  guided_whitespace_pattern: remove,
  // vLLM.
  bad_words: instead('logit_bias'),
  allowed_token_ids: instead('logit_bias'),
  prompt_logprobs: 'Send "echo": true and "logprobs" to /v1/completions instead.',
  truncate_prompt_tokens: 'Remove it, and shorten the prompt.',
  chat_template: 'Remove it: start the server with --chat-template FILE.',
  documents: kwargs('documents'),
  'stream_options.continuous_usage_stats': 'Remove it: the last event has the usage.',
  'structured_outputs.whitespace_pattern': remove,
  'structured_outputs.disable_any_whitespace': remove,
  'structured_outputs.disable_fallback': remove,
  // Ollama.
  options: 'Send its fields beside "model", such as "temperature".',
  format: structured,
  think: instead('reasoning_effort'),
  keep_alive: unloading,
  num_ctx: context,
  num_predict: instead('max_tokens'),
  // llama.cpp.
  n_predict: instead('max_tokens'),
  repeat_penalty: instead('repetition_penalty'),
  json_schema: structured,
  grammar: constraint('grammar'),
  reasoning_format: 'Remove it: start the server with --reasoning-parser NAME.',
  'response_format.schema': '"response_format" takes a schema as "json_schema": { "schema": ... }.',
  ...Object.fromEntries(
    [
      'top_a',
      'typ_p',
      'typical_p',
      'tfs_z',
      'mirostat',
      'mirostat_tau',
      'mirostat_eta',
      'repeat_last_n',
      'dynatemp_range',
      'xtc_probability',
      'dry_multiplier',
      'samplers',
    ].map((name) => [name, samplers]),
  ),
  // Other APIs.
  enable_thinking: kwargs('enable_thinking'),
  thinking_budget: kwargs('thinking_budget'),
  thinking: instead('reasoning_effort'),
  reasoning: instead('reasoning_effort'),
  stop_sequences: instead('stop'),
  max_output_tokens: instead('max_completion_tokens'),
  system: 'Send it as a message with the role "system".',
  usage: 'Send "stream_options": { "include_usage": true } instead.',
  ttl: unloading,
  extra_body: 'Send its fields beside "model": only OpenAI\'s Python package has "extra_body".',
};

/**
 * Returns advice for a parameter of another server, such as the field that replaces it. Returns
 * undefined for an unknown parameter.
 */
export const adviceFor = (param: string): string | undefined =>
  Object.hasOwn(ADVICE, param) ? ADVICE[param] : undefined;
