package edgespec.app;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.List;

/**
 * Stores a conversation in a file, so that it outlives the process. It writes a temporary file and
 * renames it, so that the file is always complete.
 */
final class Transcript {
    private static final int VERSION = 1;
    private static final Charset UTF_8 = Charset.forName("UTF-8");

    private final File file;

    Transcript(File file) {
        this.file = file;
    }

    /**
     * Writes the file.
     *
     * @param answering whether the last answer is unfinished
     */
    void write(List<Entry> entries, boolean answering) throws IOException {
        File beside = new File(file.getPath() + ".new");
        try (DataOutputStream out = new DataOutputStream(
                new BufferedOutputStream(new FileOutputStream(beside)))) {
            out.writeByte(VERSION);
            out.writeBoolean(answering);
            out.writeInt(entries.size());
            for (Entry entry : entries) {
                write(out, entry);
            }
        }
        if (!beside.renameTo(file)) {
            throw new IOException("could not rename " + beside.getName() + " to " + file.getName());
        }
    }

    private static void write(DataOutputStream out, Entry entry) throws IOException {
        byte[] text = entry.text.toString().getBytes(UTF_8);
        out.writeByte(entry.kind);
        out.writeInt(text.length);
        out.write(text);
        out.writeInt(entry.drafted.length);
        for (int position : entry.drafted) {
            out.writeInt(position);
        }
    }

    /**
     * Reads the file, if there is one, and adds its contents to the entries.
     *
     * @return whether the last answer was unfinished
     * @throws IOException if the file is damaged or of another version; entries are then as before
     */
    boolean read(List<Entry> entries) throws IOException {
        if (!file.exists()) {
            return false;
        }
        try (DataInputStream in = new DataInputStream(
                new BufferedInputStream(new FileInputStream(file)))) {
            int version = in.readByte();
            if (version != VERSION) {
                throw new IOException("it is of version " + version + ", this app reads version " + VERSION);
            }
            boolean answering = in.readBoolean();
            List<Entry> all = new ArrayList<Entry>();
            for (int left = in.readInt(); left > 0; left--) {
                all.add(readEntry(in));
            }
            entries.addAll(all);
            return answering;
        }
    }

    private Entry readEntry(DataInputStream in) throws IOException {
        int kind = in.readByte();
        byte[] text = new byte[checked(in.readInt())];
        in.readFully(text);
        Entry entry = new Entry(kind, new String(text, UTF_8));
        entry.drafted = new int[checked(in.readInt())];
        for (int i = 0; i < entry.drafted.length; i++) {
            entry.drafted[i] = in.readInt();
        }
        return entry;
    }

    /** Checks a length before memory is allocated for it. */
    private int checked(int length) throws IOException {
        if (length < 0 || length > file.length()) {
            throw new IOException("the file is damaged");
        }
        return length;
    }
}
