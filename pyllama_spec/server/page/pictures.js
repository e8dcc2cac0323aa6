// Pictures that go with a message, as data: URLs.

// What is sent as it is; anything else is drawn anew, no larger than a model looks at.
const SENT = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"];
const MAX_BYTES = 1 << 20;
const MAX_SIDE = 2048;

/** The files of a drop or a paste that are pictures. */
export function picturesOf(transfer) {
  return [...(transfer?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
}

/**
 * A picture's file as a data: URL.
 *
 * @param {File} file
 * @throws {Error} where the browser cannot read it.
 */
export async function urlOf(file) {
  if (SENT.includes(file.type) && file.size <= MAX_BYTES) return read(file);
  const image = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
