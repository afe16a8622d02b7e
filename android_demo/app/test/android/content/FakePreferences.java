package android.content;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Properties;

/** Preferences in a file, because they outlive the process. */
final class FakePreferences implements SharedPreferences, SharedPreferences.Editor {
    private final File file;
    private final Properties values = new Properties();

    FakePreferences(File file) {
        this.file = file;
        if (file.exists()) {
            try (InputStream in = new FileInputStream(file)) {
                values.load(in);
            } catch (IOException error) {
                throw new AssertionError(error);
            }
        }
    }

    @Override
    public String getString(String key, String otherwise) {
        return values.getProperty(key, otherwise);
    }

    @Override
    public boolean getBoolean(String key, boolean otherwise) {
        return Boolean.parseBoolean(values.getProperty(key, String.valueOf(otherwise)));
    }

    @Override
    public Editor edit() {
        return this;
    }

    @Override
    public Editor putString(String key, String value) {
        values.setProperty(key, value);
        return this;
    }

    @Override
    public Editor putBoolean(String key, boolean value) {
        values.setProperty(key, String.valueOf(value));
        return this;
    }

    @Override
    public void apply() {
        try (OutputStream out = new FileOutputStream(file)) {
            values.store(out, null);
        } catch (IOException error) {
            throw new AssertionError(error);
        }
    }
}
