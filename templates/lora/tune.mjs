// @ts-check
// Trains a LoRA adapter for the model in base/ on data/polite.jsonl, and compares both.
import { initInference, nn, peft, seed, Trainer, text } from '@ds/native';

seed(1); // The same initial values in every run.
const tokenizer = text.Tokenizer.fromPretrained('base');
const model = await nn.models.fromPretrained('base');
peft.addLora(model, { r: 8, loraAlpha: 16, targetModules: 'all-linear' });

const files = 'data/polite.jsonl'; // The same questions with polite answers.
const train = await text.TextDataset.open({ files, tokenizer, length: 128, loss: 'assistant' });
const deepspeed = 'ds_config.json';
const trainer = new Trainer({ model, tokenizer, train, deepspeed, maxSteps: 100 });
await trainer.train(); // Updates the adapter only; the base is frozen.
await trainer.save('adapter'); // adapter_config.json and adapter_model.safetensors, as PEFT reads them.
await trainer.destroy();

for (const folder of ['base', 'adapter']) {
  const engine = await initInference(folder, {}, { tokenizer });
  const messages = [{ role: 'user', content: 'What is a token?' }];
  const [answer] = await engine.generate({ messages, temperature: 0 });
  console.log(`${folder}: ${answer?.text}`);
  await engine.destroy();
}
