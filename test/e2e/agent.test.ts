// examples/agent.js as a user runs it, with a model whose answers are random.
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const folder = mkdtempSync(join(tmpdir(), 'ds-agent-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('the example answers a question', async () => {
  const config = {
    model_type: 'llama',
    vocab_size: 1007,
    hidden_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    intermediate_size: 64,
    max_position_embeddings: 1024,
  };
  await nn.models.fromConfig(config).save(folder);
  cpSync(join(root, 'examples', 'tokenizer'), folder, { recursive: true });
  const words = [folder, 'Which files are here?', '--max_new_tokens', '8', '--device', 'cpu'];
  const script = join(root, 'examples', 'agent.js');
  const printed = execFileSync(process.execPath, [script, ...words], { encoding: 'utf8' });
  expect(printed).toMatch(/\n\[1 answers, (stop|length)\]\n$/);
});
