// Tests the first layer of each stage, for the partition methods of the configuration.
import { initialize, nn, PipelineModule } from '../../lib/index.js';

const SIZES = { vocabSize: 512, maxSeq: 8, layers: 8, heads: 2, channels: 16 };

async function startsOf(
  model: nn.Module,
  partition?: string,
  more: { seed_layers?: boolean } = {},
): Promise<readonly number[]> {
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'SGD', params: { lr: 1 } },
      pipeline: {
        stages: 1,
        schedule: 'interleaved',
        stages_per_rank: 2,
        ...more,
        partition,
      },
    },
  });
  const { starts } = (engine as unknown as { pipe: { pipeline: { starts: number[] } } }).pipe
    .pipeline;
  engine.destroy();
  return starts;
}

test('the head of a language model has a cost in proportion to its product', async () => {
  // A block multiplies with 12 x 16 x 16 elements, the head with 512 x 16, which is 2.7 blocks.
  const gpt2 = (): nn.Module => new nn.models.GPT2(SIZES);
  expect(await startsOf(gpt2())).toEqual([0, 6, 11]);
  expect(await startsOf(gpt2(), 'flops')).toEqual([0, 6, 11]);
  expect(await startsOf(gpt2(), 'parameters')).toEqual([0, 5, 11]);
});

test('a list of layers is divided by its own method', async () => {
  const layers = [new nn.Linear(8, 64), new nn.Linear(64, 8), new nn.Linear(8, 8)];
  const makeStages = (): nn.Module => new PipelineModule({ layers, lossFn: (x) => x.sum() });
  expect(await startsOf(makeStages())).toEqual([0, 1, 3]);
});

type ModuleOptions = ConstructorParameters<typeof PipelineModule>[0];

const layersFor = (options: Partial<ModuleOptions>): nn.Module =>
  new PipelineModule({
    layers: [new nn.Linear(8, 64), new nn.Linear(64, 8), new nn.Linear(8, 8)],
    lossFn: (x) => x.sum(),
    ...options,
  });

test('the same method in module and configuration is accepted', async () => {
  expect(await startsOf(layersFor({ partitionMethod: 'uniform' }))).toEqual([0, 2, 3]);
  expect(await startsOf(layersFor({}), 'uniform')).toEqual([0, 2, 3]);
  expect(await startsOf(layersFor({ partitionMethod: 'uniform' }), 'best')).toEqual([0, 2, 3]);
  expect(await startsOf(layersFor({ partitionMethod: 'uniform' }), 'uniform')).toEqual([0, 2, 3]);
  await expect(startsOf(layersFor({ partitionMethod: 'uniform' }), 'parameters')).rejects.toThrow(
    expect.objectContaining({
      code: 'DS_CONFIG',
      op: 'pipeline.partition',
      expected: '"uniform", the partitionMethod of the PipelineModule',
      got: '"parameters"',
    }),
  );
});

test('layers that the configuration seeds are not left unseeded by the module', async () => {
  const seeded = { seed_layers: true };
  await startsOf(layersFor({ seedLayers: true }), undefined, seeded);
  await expect(startsOf(layersFor({ seedLayers: false }), undefined, seeded)).rejects.toThrow(
    /^pipeline.seed_layers: expected false, the seedLayers of the Pipe.*got true/,
  );
});

test('names of partition methods ignore case, and unknown names are refused', async () => {
  expect(await startsOf(layersFor({ partitionMethod: 'Uniform' as 'uniform' }))).toEqual([0, 2, 3]);
  expect(await startsOf(layersFor({}), 'UNIFORM')).toEqual([0, 2, 3]);
  await expect(startsOf(layersFor({}), 'flopz')).rejects.toThrow(
    /pipeline.partition: expected "best", or "parameters", .* or "type:REGEX", got "flopz"/,
  );
  await expect(startsOf(layersFor({}), 'type:[')).rejects.toThrow(
    /pipeline.partition: expected "best", or a regular expression after "type:" .*, got "type:\["/,
  );
  expect(() => layersFor({ partitionMethod: 'type:[' })).toThrow(
    /^PipelineModule partitionMethod: expected a regular expression .* got "type:\["/,
  );
});
