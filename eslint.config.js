import tseslint from 'typescript-eslint'

/** Parts of src that get the world through ports (src/common/ports.ts); the rest of src are adapters and the composition root. */
const CORE = ['src/**/*.ts']
const OUTSIDE_CORE = ['src/app.ts', 'src/broker/kafka/**', 'src/state/sqlite/**', 'src/cli/**', 'src/testing/sim/virtual-time.ts']
const PORTS = 'take a port by the constructor (src/common/ports.ts)'

export default tseslint.config(
  { ignores: ['dist/', 'node_modules/', '.millrace/', 'coverage/', 'test/fixtures/tidy/'] },
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  {
    files: ['**/*.ts'],
    extends: [...tseslint.configs.recommendedTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      '@typescript-eslint/no-floating-promises': ['error', { checkThenables: true }],
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      '@typescript-eslint/consistent-type-imports': [
        'error',
        { prefer: 'type-imports', fixStyle: 'inline-type-imports', disallowTypeAnnotations: false },
      ],
      '@typescript-eslint/return-await': ['error', 'error-handling-correctness-only'],
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_', caughtErrorsIgnorePattern: '^_' }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true, allowBoolean: true, allowNever: true }],
      // `interface Order extends z.infer<typeof schema> {}` gives a schema's type a short name in messages.
      '@typescript-eslint/no-empty-object-type': ['error', { allowInterfaces: 'with-single-extends' }],
      // A port's async method need not await: its signature is the promise.
      '@typescript-eslint/require-await': 'off',
      eqeqeq: 'error',
      'no-var': 'error',
      'prefer-const': 'error',
      'no-restricted-syntax': ['error', { selector: 'TSEnumDeclaration', message: 'use a union of strings' }],
    },
  },
  {
    files: CORE,
    ignores: OUTSIDE_CORE,
    rules: {
      'no-restricted-globals': [
        'error',
        ...['setTimeout', 'setInterval', 'setImmediate', 'clearTimeout', 'clearInterval', 'clearImmediate', 'performance'].map((name) => ({
          name,
          message: PORTS,
        })),
      ],
      'no-restricted-properties': [
        'error',
        { object: 'Date', property: 'now', message: PORTS },
        { object: 'Math', property: 'random', message: PORTS },
        { object: 'process', property: 'env', message: PORTS },
        { object: 'process', property: 'hrtime', message: PORTS },
      ],
      'no-restricted-syntax': [
        'error',
        { selector: 'TSEnumDeclaration', message: 'use a union of strings' },
        { selector: "NewExpression[callee.name='Date'][arguments.length=0]", message: PORTS },
        { selector: "CallExpression[callee.name='Date']", message: PORTS },
      ],
      '@typescript-eslint/no-restricted-imports': [
        'error',
        {
          paths: ['fs', 'fs/promises', 'timers', 'timers/promises', 'child_process', 'perf_hooks', 'process']
            .flatMap((name) => [name, `node:${name}`])
            .map((name) => ({ name, message: PORTS, allowTypeImports: true })),
          patterns: [{ regex: '^(@confluentinc/|kafkajs$|better-sqlite3$)', message: 'adapters only: src/broker/kafka, src/state/sqlite' }],
        },
      ],
    },
  },
  {
    // A user's config file is evaluated by defineConfig, whose function form is handed the environment.
    files: ['src/config/define.ts'],
    rules: { 'no-restricted-properties': 'off' },
  },
  {
    // Tests look into what they are given, and hand in what the types forbid.
    files: ['test/**/*.ts', '**/*.test.ts'],
    rules: {
      '@typescript-eslint/no-explicit-any': 'off',
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-call': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      '@typescript-eslint/no-unsafe-return': 'off',
      '@typescript-eslint/unbound-method': 'off',
    },
  },
  {
    files: ['**/*.js', '**/*.mjs'],
    languageOptions: { sourceType: 'module' },
    rules: { eqeqeq: 'error', 'no-var': 'error', 'prefer-const': 'error', 'no-unused-vars': 'off' },
  },
)
