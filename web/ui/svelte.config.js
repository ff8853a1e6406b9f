// Svelte 5 compiles TypeScript by itself.
export default {};
