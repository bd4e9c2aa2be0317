// @ts-check
// Trains the model of model.mjs on data/notes.jsonl, saves it, and sorts three new notes.
import { readFileSync } from 'node:fs';
import { initialize, noGrad, scope, seed, Tensor } from '@ds/native';
import { encode, LENGTH, ROOMS, Sorter } from './model.mjs';

seed(1); // The same initial values in every run.
const lines = readFileSync('data/notes.jsonl', 'utf8').trim().split('\n');
const rows = lines.map((line) => JSON.parse(line));
const trainingData = {
  length: rows.length,
  /** @param {number} i */
  get: (i) => ({
    words: encode(rows[i].note),
    rooms: Int32Array.of(ROOMS.indexOf(rows[i].room)),
  }),
};
const model = new Sorter();
const { engine, trainLoader } = await initialize({ model, config: 'ds_config.json', trainingData });
while (trainLoader.epoch < 40) {
  for await (const { words, rooms } of trainLoader) {
    engine.backward(engine.forward(words, rooms));
    engine.step();
    for (const tensor of [words, rooms]) tensor.dispose();
  }
}
await engine.saveCheckpoint('model'); // engine.loadCheckpoint('model') continues here.
engine.destroy();

// The launcher adds --local_rank.
const given = process.argv.slice(2).filter((word) => !word.startsWith('--'));
const notes = given.length > 0 ? given : ['wash the oven', 'cut the lawn', 'paint the shelf'];
for (const note of notes) {
  const words = Tensor.from(encode(note), { shape: [1, LENGTH] });
  const best = noGrad(() => scope(() => model.logits(words).argmax().item()));
  console.log(`${note} -> ${ROOMS[Number(best)]}`);
}
