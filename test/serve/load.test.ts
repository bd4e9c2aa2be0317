// Clients send requests in a loop; `scripts/try-requests.mjs --load` runs 1,000 clients.
import { initInference, nn } from '../../lib/index.js';
import { serve } from '../../lib/serve/index.js';
import { until } from './client.js';
import { tokenizer } from './fake-engine.js';
import { runLoad } from './load.js';
import { HERMES } from './scripted-engine.js';

const CLIENTS = 20;
const REQUESTS = 120;

test(`${CLIENTS} clients get whole answers to ${REQUESTS} requests and leave nothing`, async () => {
  const model = nn.models.fromConfig({
    model_type: 'llama',
    vocab_size: 1007,
    hidden_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    intermediate_size: 64,
    max_position_embeddings: 512,
  });
  const engine = await initInference(model, { device: 'cpu', max_out_tokens: 512 }, { tokenizer });
  const server = await serve(engine, {
    port: 0,
    apiKeys: ['key'],
    chatTemplate: HERMES,
    reasoningParser: 'none', // Random weights would begin to reason and not end it.
  });
  try {
    let left = REQUESTS;
    const goesOn = (): boolean => left-- > 0;
    const { faults, requests } = await runLoad({
      url: server.url,
      key: 'key',
      clients: CLIENTS,
      goesOn,
    });
    expect(faults).toEqual([]);
    for (const count of Object.values(requests)) expect(count).toBeGreaterThan(0);
    await until(() => server.lives.size + server.admission.running + server.bodies.bytes === 0);
    await until(() => engine.stats().running + engine.stats().waiting === 0);
    expect(engine.stats().blocksUsed).toBe(0);
    await server.stop();
  } finally {
    await server.kill();
    await engine.destroy();
  }
});
