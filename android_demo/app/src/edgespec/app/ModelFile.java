package edgespec.app;

import android.content.Context;
import android.net.Uri;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;

/**
 * Copies the file that the user has picked into the app, because the engine opens a file by its path
 * and a picked file has none. Turning the phone does not interrupt it.
 */
final class ModelFile {
    private static final byte[] MAGIC = {'G', 'G', 'U', 'F'};
    private static final int MB = 1000000;

    private final Context context;
    private final Changes changes;
    private final File file;
    private boolean copying;
    private String state = "";
    private String arrived;

    ModelFile(Context context, Changes changes, File file) {
        this.context = context;
        this.changes = changes;
        this.file = file;
    }

    /** Begins to copy; {@link #state} tells the progress. Does nothing while another copy is made. */
    synchronized void copy(final Uri picked) {
        if (copying) {
            return;
        }
        copying = true;
        new Thread("edgespec-copy") {
            @Override
            public void run() {
                String sentence = copied(picked);
                synchronized (ModelFile.this) {
                    copying = false;
                }
                say(sentence);
            }
        }.start();
    }

    /** Returns a sentence on the progress or result of the copy; "" before the first one. */
    synchronized String state() { return state; }

    /** Returns the path of a file that was copied since the last call, or null. */
    synchronized String takeArrived() {
        String path = arrived;
        arrived = null;
        return path;
    }

    private String copied(Uri picked) {
        File part = new File(file.getPath() + ".new");
        try (InputStream in = context.getContentResolver().openInputStream(picked)) {
            if (in == null) {
                throw new FileNotFoundException("the app that has it did not give it");
            }
            byte[] head = new byte[MAGIC.length];
            for (int i = 0; i < head.length; i++) {
                head[i] = (byte) in.read(); // -1 after the end, which is not in the magic
            }
            if (!Arrays.equals(head, MAGIC)) {
                return context.getString(R.string.not_gguf);
            }
            long size = write(head, in, part);
            if (!part.renameTo(file)) {
                throw new IOException("could not rename " + part.getName());
            }
            synchronized (this) {
                arrived = file.getPath();
            }
            return context.getString(R.string.copied, size / MB);
        } catch (IOException | SecurityException error) {
            part.delete();
            return context.getString(R.string.not_copied, error.getMessage());
        }
    }

    private long write(byte[] head, InputStream in, File to) throws IOException {
        long size = head.length;
        long said = 0;
        byte[] block = new byte[1 << 16];
        try (OutputStream out = new FileOutputStream(to)) {
            out.write(head);
            for (int n = in.read(block); n > 0; n = in.read(block)) {
                out.write(block, 0, n);
                size += n;
                if (size - said > MB) {
                    said = size;
                    say(context.getString(R.string.copying, size / MB));
                }
            }
        }
        return size;
    }

    private void say(String sentence) {
        synchronized (this) {
            state = sentence;
        }
        changes.tell();
    }
}
