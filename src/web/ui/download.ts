/** Files that the browser saves. */

export function saveFile(name: string, content: Blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The time for the name of a file, in UTC. */
export const timeForName = () => new Date().toISOString().slice(0, 19).replaceAll(":", "");
