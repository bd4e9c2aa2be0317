// Tests the errors of initialize() for a tensor_parallel section that does not fit the model or the
// mesh.
import { type DsConfig, initialize, nn } from '../../lib/index.js';

const start = (model: nn.Module, section: object) =>
  initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'AdamW', params: {} },
      tensor_parallel: section,
    } as DsConfig,
    device: 'cpu',
  });

test('a single process has no ranks to share layers with', async () => {
  const model = new nn.Linear(4, 4);
  await expect(start(model, { autotp_size: 2 })).rejects.toMatchObject({
    code: 'DS_CONFIG',
    op: 'tensor_parallel.autotp_size',
    message: expect.stringMatching(
      /expected 1, the ranks on the mesh's axis tp, got 2\. Start 2 ranks: ds --num_procs 2/,
    ),
  });
});

test('a single process has no ranks to share tokens with', async () => {
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW', params: {} } };
  const model = new nn.models.GPT2({ vocabSize: 8, maxSeq: 4, layers: 1, heads: 2, channels: 4 });
  const start2 = (more: object) =>
    initialize({ model, config: { ...config, ...more } as DsConfig, device: 'cpu' });
  await expect(start2({ sequence_parallel_size: 2 })).rejects.toMatchObject({
    code: 'DS_CONFIG',
    op: 'sequence_parallel_size',
    message: expect.stringMatching(
      /expected 1, the ranks on the mesh's axis sp, got 2\. Start 2 ranks: ds --num_procs 2/,
    ),
  });
  await expect(start2({ data_parallel_size: 2 })).rejects.toMatchObject({
    code: 'DS_CONFIG',
    message: expect.stringMatching(/data_parallel_size: expected 1, the size of axis dp, got 2/),
  });
});

test.each([{}, { autotp_size: 0 }, { autotp_size: 1 }])(
  '%j leaves the model whole',
  async (section) => {
    const { engine } = await start(new nn.Linear(4, 4), section);
    expect(engine.module.parameters().map(({ isCut }) => isCut)).toEqual([false, false]);
    engine.destroy();
  },
);
