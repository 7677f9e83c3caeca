/** Headers of a dead letter. The record's own bytes, key and headers are kept as they were; these are added behind them. */
import type { HeaderList } from '../broker/port.ts'
import type { Failure } from '../topology/public-types.ts'

const STACK_LIMIT_BYTES = 4_096
const MESSAGE_LIMIT_BYTES = 1_024

export function deadLetterHeaders({ node, phase, error, attempts, record }: Failure): HeaderList {
  return [
    ['millrace.topic', Buffer.from(record.topic)],
    ['millrace.partition', Buffer.from(String(record.partition))],
    ['millrace.offset', Buffer.from(String(record.offset))],
    ['millrace.timestamp', Buffer.from(String(record.timestamp))],
    ['millrace.node', Buffer.from(node)],
    ['millrace.phase', Buffer.from(phase)],
    ['millrace.error', Buffer.from(error.name)],
    ['millrace.message', capped(error.message, MESSAGE_LIMIT_BYTES)],
    ['millrace.stack', capped(error.stack ?? '', STACK_LIMIT_BYTES)],
    ['millrace.attempts', Buffer.from(String(attempts))],
  ]
}

function capped(text: string, limitBytes: number): Buffer {
  const bytes = Buffer.from(text)
  return bytes.length <= limitBytes ? bytes : bytes.subarray(0, limitBytes)
}
