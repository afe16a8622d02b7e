package edgespec.app;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Stores a conversation in a file, so that it outlives the process: JSON in one line. It writes a
 * temporary file and renames it, so that the file is always complete.
 */
final class Transcript {
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
        File part = new File(file.getPath() + ".new");
        try (OutputStream out = new FileOutputStream(part)) {
            JSONArray all = new JSONArray();
            for (Entry entry : entries) {
                JSONArray drafted = new JSONArray();
                for (int position : entry.drafted) {
                    drafted.put(position);
                }
                all.put(new JSONObject().put("kind", entry.kind).put("text", entry.text.toString())
                        .put("drafted", drafted));
            }
            JSONObject conversation = new JSONObject().put("answering", answering).put("entries", all);
            out.write(conversation.toString().getBytes(StandardCharsets.UTF_8));
        } catch (JSONException error) {
            throw new IOException(error);
        }
        if (!part.renameTo(file)) {
            throw new IOException("could not rename " + part.getName() + " to " + file.getName());
        }
    }

    /**
     * Reads the file, if there is one, and adds its contents to the entries.
     *
     * @return whether the last answer was unfinished
     * @throws IOException if the file is damaged; entries are then as before
     */
    boolean read(List<Entry> entries) throws IOException {
        if (!file.exists()) {
            return false;
        }
        try (BufferedReader in = new BufferedReader(
                new InputStreamReader(new FileInputStream(file), StandardCharsets.UTF_8))) {
            JSONObject conversation = new JSONObject(String.valueOf(in.readLine()));
            boolean answering = conversation.getBoolean("answering");
            JSONArray all = conversation.getJSONArray("entries");
            List<Entry> found = new ArrayList<Entry>();
            for (int i = 0; i < all.length(); i++) {
                JSONArray drafted = all.getJSONObject(i).getJSONArray("drafted");
                Entry entry = new Entry(all.getJSONObject(i).getInt("kind"), all.getJSONObject(i).getString("text"));
                entry.drafted = new int[drafted.length()];
                for (int j = 0; j < entry.drafted.length; j++) {
                    entry.drafted[j] = drafted.getInt(j);
                }
                found.add(entry);
            }
            entries.addAll(found);
            return answering;
        } catch (JSONException error) {
            throw new IOException("the file is damaged", error);
        }
    }
}
