// The CRC-32C of a file by its path.
import { InputFile } from '../../lib/runtime/input-file.js';

export async function checksumFile(path: string): Promise<number> {
  const file = await InputFile.open(path);
  try {
    return await file.checksum();
  } finally {
    await file.close();
  }
}
