/** What a test gets that uses the driver in a way that cannot work, or whose workers do not come to an end. */
export class TestDriverError extends Error {
  override readonly name = 'TestDriverError'
}
