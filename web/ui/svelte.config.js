// Svelte 5 reads TypeScript by itself.
export default {};
