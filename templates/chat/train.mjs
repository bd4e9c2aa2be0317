// @ts-check
// Trains a small Llama on the chats of data/chats.jsonl, saves it, and asks it two questions.
// Usage: node train.mjs [FOLDER]
import { initInference, nn, seed, Trainer, text } from '@ds/native';

// The launcher adds --local_rank.
const [folder = 'model'] = process.argv.slice(2).filter((word) => !word.startsWith('--'));
seed(1); // The same initial values in every run.
const tokenizer = text.Tokenizer.fromPretrained('tokenizer');
const { vocabSize } = tokenizer;
const sizes = { layers: 2, heads: 4, kvHeads: 2, channels: 64, hidden: 192, maxSeq: 256 };
const model = new nn.models.Llama({ vocabSize, ...sizes, tied: true });

const files = 'data/chats.jsonl'; // A chat on each line.
const train = await text.TextDataset.open({ files, tokenizer, length: 128, loss: 'assistant' });
const deepspeed = 'ds_config.json';
const trainer = new Trainer({ model, tokenizer, train, deepspeed, maxSteps: 120 });
await trainer.train();
await trainer.save(folder); // config.json, weights and tokenizer, as transformers reads them.
await trainer.destroy();

const engine = await initInference(folder);
for (const content of ['What is a token?', 'Who trained you?']) {
  const messages = [{ role: 'user', content }];
  const [answer] = await engine.generate({ messages, temperature: 0 });
  console.log(`> ${content}\n${answer?.text}`);
}
await engine.destroy();
