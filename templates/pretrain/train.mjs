// @ts-check
// From text to a language model: turns data/ into tokens, trains a GPT-2, and lets it write.
import { data, initialize, nn, seed, text } from '@ds/native';

seed(1); // The same initial values in every run.
const seq = 64; // Tokens of a sample.
const tokenizer = text.Tokenizer.fromPretrained('tokenizer');
/** @param {string} part */
const encode = (part) => tokenizer.encode(part, { addSpecialTokens: false });
const { tokens: all } = data.TokenDataset.fromText({ path: 'data', encode, seq });
console.log(`${all.length} tokens`);

const trainingData = {
  length: all.length - seq,
  /** A window of tokens, and the token that follows each of them. @param {number} i */
  get: (i) => ({ tokens: all.slice(i, i + seq), targets: all.slice(i + 1, i + 1 + seq) }),
};
const { vocabSize } = tokenizer; // nn.models.Llama takes the same sizes, and hidden.
const model = new nn.models.GPT2({ vocabSize, maxSeq: seq, layers: 2, heads: 4, channels: 96 });
const { engine, trainLoader } = await initialize({ model, config: 'ds_config.json', trainingData });
while (trainLoader.epoch < 2) {
  for await (const { tokens, targets } of trainLoader) {
    engine.backward(engine.forward(tokens, targets));
    engine.step();
    for (const tensor of [tokens, targets]) tensor.dispose();
  }
}
await engine.saveCheckpoint('model'); // `npm run write` continues your texts.
engine.destroy();

const written = model.generate([...encode('In the winter')], {
  maxNewTokens: 56,
  temperature: 0.5,
});
console.log(`\n${tokenizer.decode(written)}`);
