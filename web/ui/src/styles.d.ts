// Style sheets are left to the bundler.
declare module '*.css';
